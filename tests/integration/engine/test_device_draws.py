"""Rows that want more than the likeliest token, on an accelerator, beside the CPU's.

Where what is drawn may differ in its last bits, outputs are greedy.
"""

import re
from dataclasses import replace

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.grammar import GrammarBackend, Thinking
from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe, load_model
from support.grammars import regex
from support.guided_loop import (
    VOCABULARY_SIZE,
    GuidedModel,
    run_until_ended,
)
from support.loop_harness import request, running_loop_of
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.device

CODE = "[a-f]{2}-[0-9]{1,4}(-x)?"
PROMPTS = prompts(9, least=20, most=60)
CONFIG = EngineConfig(
    device="cuda",
    dtype="float32",
    block_tokens=16,
    max_rows=9,
    max_step_tokens=128,
    max_context_tokens=128,
    kv_cache_tokens=4096,
    deterministic=True,
    tuning_limit_s=0,
)
ON_CPU = replace(CONFIG, device="cpu", deterministic=False, num_threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    checkpoint = tmp_path_factory.mktemp("model")
    make_checkpoint(checkpoint, TinyModel(vocabulary_size=VOCABULARY_SIZE))
    return GuidedModel.of(save_byte_level_tokenizer(checkpoint))


@pytest.fixture(scope="module")
def loaded(model):
    return load_model(replace(CONFIG, run_ahead=2), model.checkpoint)


def run(loaded, config, model, asked):
    with running_loop_of(loaded, config, checkpoint=str(model.checkpoint)) as harness:
        for request_id, one in asked.items():
            harness.submit(request_id, one)
        run_until_ended(harness, asked)
        assert not any(harness.heard.failed.values())
        return dict(harness.heard.tokens), harness.stats()


def run_on_cpu(model, asked):
    return run(load_model(ON_CPU, model.checkpoint), ON_CPU, model, asked)[0]


def guided_beside_others(model):
    stop = StopParams(max_output_tokens=40, end_ids=(model.end_id,))
    penalised = SamplingParams(
        seed=1, temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={9: 1.5}
    )
    code = regex(CODE, GrammarBackend.LLGUIDANCE)
    thinking = Thinking(end_text="[/THINK]", max_tokens=5)
    early = StopParams(max_output_tokens=40, min_output_tokens=20, end_ids=(model.end_id,))
    return {
        1: model.request(code, prompt=PROMPTS[0], stop=stop),
        2: model.request(None, prompt=PROMPTS[1], stop=stop),
        3: model.request(code, prompt=PROMPTS[2], stop=stop, sampling=penalised),
        4: model.request(None, prompt=PROMPTS[3], stop=early, sampling=penalised),
        5: model.request(code, prompt=PROMPTS[4], stop=stop, thinking=thinking),
    }


@pytest.mark.parametrize("settings", [{}, {"run_ahead": 2}, {"fault_pause_every": 3}], ids=str)
def test_guided_and_penalised_outputs_are_the_cpus(model, loaded, settings):
    asked = guided_beside_others(model)
    config = replace(CONFIG, **settings)

    tokens, stats = run(loaded, config, model, asked)

    assert tokens == run_on_cpu(model, asked)
    assert re.fullmatch(CODE, model.text(tokens[1, 0]))
    assert loaded.draws.num_replays > 0
    assert (stats.num_preemptions_total > 0) == ("fault_pause_every" in settings)


def test_operators_say_the_same_where_kernels_cannot_compute_the_model(model):
    asked = guided_beside_others(model)
    fallback = describe(Executor(CONFIG, model.checkpoint))

    tokens, _ = run(fallback, CONFIG, model, asked)

    assert tokens == run_on_cpu(model, asked)


def drawn_requests():
    stop = StopParams(max_output_tokens=20)
    choices = [
        {"top_p": 0.9},
        {"top_k": 7},
        {},
        {"top_p": 0.7, "top_k": 30, "presence_penalty": 0.5},
        {"min_p": 0.05},
    ]
    return {
        i + 1: request(
            *prompt,
            stop=stop,
            sampling=SamplingParams(seed=i, temperature=1.2, **choices[i % len(choices)]),
        )
        for i, prompt in enumerate(PROMPTS)
    }


def test_drawn_outputs_depend_on_no_mates(model, loaded):
    asked = drawn_requests()
    together, _ = run(loaded, CONFIG, model, asked)

    alone = {}
    for request_id, one in asked.items():
        alone |= run(loaded, CONFIG, model, {request_id: one})[0]

    assert alone == together
    assert len(set(map(tuple, together.values()))) == len(asked)


def test_draws_launched_part_by_part_say_the_same(model, loaded):
    asked = drawn_requests() | {20: guided_beside_others(model)[1]}
    config = replace(CONFIG, cuda_graphs=False)
    parts = load_model(config, model.checkpoint)

    tokens, _ = run(parts, config, model, asked)

    assert tokens == run(loaded, CONFIG, model, asked)[0]
    assert parts.draws.num_replays == 0


@pytest.mark.parametrize("settings", [{}, {"fault_pause_every": 4}], ids=str)
def test_blocks_come_back_from_the_host_as_they_went(model, settings):
    stop = StopParams(max_output_tokens=20)
    asked = {i + 1: request(*prompt, stop=stop) for i, prompt in enumerate(PROMPTS)}
    config = replace(CONFIG, kv_cache_tokens=12 * 16, host_cache_bytes=1 << 22, **settings)
    small = load_model(config, model.checkpoint)
    expected = run_on_cpu(model, asked)
    with running_loop_of(small, config, checkpoint=str(model.checkpoint)) as harness:
        for turn in range(3):
            for request_id, one in asked.items():
                harness.submit(100 * turn + request_id, one)
            harness.run()
        stats = harness.stats()

    for (request_id, output), tokens in harness.heard.tokens.items():
        assert tokens == expected[request_id % 100, output]
    assert stats.num_onloads_total > 0


def test_draws_do_not_wait_for_the_device(model, loaded):
    asked = drawn_requests()
    with running_loop_of(loaded, CONFIG, checkpoint=str(model.checkpoint)) as harness:
        for request_id, one in asked.items():
            harness.submit(request_id, one)
        torch.cuda.set_sync_debug_mode("error")
        try:
            harness.run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not any(harness.heard.failed.values())
