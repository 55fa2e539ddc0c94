"""Tiny models on an accelerator by captured steps: the reference's tokens, and no waiting."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.engine_process import warm_up
from antiphon_engine.loading import load_model
from support.greedy_engine import GreedyEngine
from support.greedy_reference import reference_outputs
from support.loop_harness import request, running_loop_of
from support.tiny_checkpoints import (
    FAMILIES,
    TinyModel,
    make_checkpoint,
    prompts,
)

pytestmark = pytest.mark.device

NUM_OUTPUT_TOKENS = 24
PROMPTS = prompts(8, least=1, most=90)
CONFIG = EngineConfig(
    device="cuda",
    dtype="float32",
    block_tokens=16,
    max_rows=8,
    max_step_tokens=256,
    kv_cache_tokens=4096,
    deterministic=True,
    tuning_limit_s=0,
)


@pytest.fixture(scope="module", params=FAMILIES)
def told(request, tmp_path_factory) -> tuple[Path, list[list[int]]]:
    """A checkpoint of each family and what the reference makes of PROMPTS."""
    checkpoint = make_checkpoint(
        tmp_path_factory.mktemp(request.param), TinyModel(family=request.param)
    )
    outputs = reference_outputs(checkpoint, PROMPTS, num_tokens=NUM_OUTPUT_TOKENS)
    return checkpoint, outputs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cuda_graphs": False},
        {"chunk_tokens": 16},
        {"max_rows": 3},
        {"prefix_reuse": False},
        {"deterministic": False},
        {"block_tokens": 32},
    ],
    ids=str,
)
def test_greedy_tokens_are_the_references(told, settings):
    checkpoint, expected = told
    config = replace(CONFIG, **settings)
    model = load_model(config, checkpoint)
    engine = GreedyEngine(checkpoint, config, model)

    first = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)
    warm = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert first == expected
    assert warm == expected
    assert (model.executor.num_replays > 0) == config.cuda_graphs


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_tokens": 16},
        {"prefix_reuse": False},
        {"max_rows": 3},
        {"fault_pause_every": 5},
        {"kv_cache_tokens": 480, "host_cache_bytes": 1 << 24},
    ],
    ids=str,
)
def test_narrow_cache_gives_the_same_tokens_however_it_is_filled(tmp_path, settings):
    checkpoint = make_checkpoint(tmp_path / "model", TinyModel(family="qwen3", head_dim=32))
    config = replace(CONFIG, kv_cache_dtype="float8_e4m3")
    expected, _, _ = run_loop(config, checkpoint, plain_only=True)

    tokens, stats, _ = run_loop(replace(config, **settings), checkpoint, plain_only=True)

    assert tokens == expected
    assert (stats.num_preemptions_total > 0) == ("fault_pause_every" in settings)


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run_loop(config, checkpoint, *, plain_only):
    model = load_model(config, checkpoint)
    warm_up(config, model)
    drawn = SamplingParams(seed=3, temperature=0.8, top_p=0.9, top_k=40)
    penalised = SamplingParams(seed=4, temperature=0.0, repetition_penalty=1.3)
    stop = StopParams(max_output_tokens=30)
    with running_loop_of(model, config, checkpoint=str(checkpoint)) as harness:
        for i, prompt in enumerate(PROMPTS):
            asked = request(*prompt, stop=stop)
            if not plain_only and i % 3 == 1:
                asked = request(*prompt, stop=stop, sampling=drawn, top_logprobs=2)
            if not plain_only and i % 3 == 2:
                asked = request(*prompt, stop=stop, sampling=penalised)
            harness.submit(i + 1, asked)
        with no_waiting():
            harness.run()
        assert not any(harness.heard.failed.values())
        return dict(harness.heard.tokens), harness.stats(), model.executor.num_replays


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_steps_are_launched_without_waiting(told, run_ahead):
    checkpoint, _ = told

    tokens, _, num_replays = run_loop(
        replace(CONFIG, run_ahead=run_ahead), checkpoint, plain_only=False
    )

    assert all(len(output) == 30 for output in tokens.values())
    assert num_replays > 0


@pytest.mark.parametrize("settings", [{"run_ahead": 0}, {"run_ahead": 2}, {"fault_pause_every": 5}])
def test_depth_and_pauses_leave_tokens_unchanged(told, settings):
    checkpoint, _ = told
    expected, _, _ = run_loop(CONFIG, checkpoint, plain_only=True)

    tokens, stats, _ = run_loop(replace(CONFIG, **settings), checkpoint, plain_only=True)

    assert tokens == expected
    assert (stats.num_preemptions_total > 0) == ("fault_pause_every" in settings)


def test_cache_takes_what_is_free_behind_the_largest_step(told):
    checkpoint, _ = told
    config = replace(CONFIG, kv_cache_tokens=0, free_gpu_memory_fraction=0.02)

    model = load_model(config, checkpoint)

    _, total = torch.cuda.mem_get_info()
    token_bytes = 2 * 2 * 2 * 16 * 4
    cache_bytes = model.facts.num_blocks * config.block_tokens * token_bytes
    assert 0.01 * total < cache_bytes < 0.02 * total
