"""Greedy output equals the reference's, token for token, whatever the engine does to get there."""

import functools

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from support.greedy_engine import GreedyEngine
from support.tiny_checkpoints import (
    FAMILIES,
    TinyModel,
    load_reference,
    make_checkpoint,
    prompts,
)

BLOCK_TOKENS = 8
NUM_OUTPUT_TOKENS = 12
PROMPTS = prompts(8, least=1, most=90)


def engine_config(**settings):
    defaults = {
        "dtype": "float32",
        "num_threads": 1,
        "block_tokens": BLOCK_TOKENS,
        "max_rows": 8,
        "max_step_tokens": 256,
        "kv_cache_tokens": 2048,
    }
    return EngineConfig(**(defaults | settings))


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Returns a checkpoint of a family and what the reference makes of PROMPTS."""

    @functools.cache
    def make(family, tied=False):
        directory = tmp_path_factory.mktemp(family)
        checkpoint = make_checkpoint(directory, TinyModel(family=family, tied=tied))
        model = load_reference(checkpoint)
        return checkpoint, [greedy(model, prompt) for prompt in PROMPTS]

    return make


def greedy(model, prompt):
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_OUTPUT_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("chunk_tokens", "cpu_kernels"),
    [*((size, "auto") for size in (8, 16, 24, 40, 88, 0)), (24, "torch")],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_under_every_chunk_size(reference, family, chunk_tokens, cpu_kernels):
    checkpoint, expected = reference(family)
    config = engine_config(chunk_tokens=chunk_tokens, cpu_kernels=cpu_kernels)
    engine = GreedyEngine(checkpoint, config)

    outputs = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert outputs == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_with_tied_embeddings(reference, family):
    checkpoint, expected = reference(family, tied=True)
    engine = GreedyEngine(checkpoint, engine_config())

    assert engine.generate(PROMPTS, NUM_OUTPUT_TOKENS) == expected


@pytest.mark.parametrize("max_rows", [1, 2, 3, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_runs_beside_a_request(reference, family, max_rows):
    checkpoint, expected = reference(family)
    engine = GreedyEngine(checkpoint, engine_config(max_rows=max_rows))

    outputs = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert outputs == expected


@pytest.mark.parametrize("block_tokens", [8, 32, 128])
def test_under_every_block_size(reference, block_tokens):
    checkpoint, expected = reference("qwen2")
    engine = GreedyEngine(checkpoint, engine_config(block_tokens=block_tokens))

    outputs = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert outputs == expected


def test_under_a_budget_smaller_than_the_prompts(reference):
    checkpoint, expected = reference("llama")
    engine = GreedyEngine(checkpoint, engine_config(max_step_tokens=17))

    outputs = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert outputs == expected


@pytest.mark.parametrize(
    ("chunk_tokens", "partial", "cpu_kernels"),
    [(8, True, "auto"), (8, False, "auto"), (0, True, "auto"), (0, True, "torch")],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_warm_prefix(reference, family, chunk_tokens, partial, cpu_kernels):
    checkpoint, expected = reference(family)
    config = engine_config(
        chunk_tokens=chunk_tokens, partial_reuse=partial, cpu_kernels=cpu_kernels
    )
    engine = GreedyEngine(checkpoint, config)
    engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    outputs = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    unit = 1 if partial else BLOCK_TOKENS
    assert list(engine.reused_tokens.values()) == [(len(p) - 1) // unit * unit for p in PROMPTS]
    assert outputs == expected


def test_with_a_prefix_that_another_request_left(reference):
    checkpoint, expected = reference("qwen3")
    engine = GreedyEngine(checkpoint, engine_config())
    longest = max(range(len(PROMPTS)), key=lambda i: len(PROMPTS[i]))
    shared = PROMPTS[longest][:40]
    engine.generate([[*shared, 5, 6, 7]], NUM_OUTPUT_TOKENS)

    outputs = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert engine.reused_tokens[longest] == 40
    assert outputs == expected


def test_in_a_cache_that_is_reused_over_and_over(reference):
    checkpoint, expected = reference("llama")
    engine = GreedyEngine(checkpoint, engine_config(kv_cache_tokens=256, max_context_tokens=128))

    for _ in range(3):
        assert engine.generate(PROMPTS, NUM_OUTPUT_TOKENS) == expected
