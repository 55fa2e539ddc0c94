"""A tiny model says what the reference says, whatever the engine does to its requests meanwhile."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import (
    CoreStats,
    GenerationRequest,
    Hold,
    Release,
    SamplingParams,
    StopParams,
)
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.greedy_reference import reference_outputs
from support.loop_harness import LoopHarness, request, running_loop_of
from support.tiny_checkpoints import make_checkpoint, prompts

NUM_OUTPUT_TOKENS = 14
STOP = StopParams(max_output_tokens=NUM_OUTPUT_TOKENS)
GREEDY = SamplingParams(seed=1, temperature=0.0)
SHARED, *OTHERS = prompts(5, least=20, most=60)
# Some go on alike to inside a block, some to a block's end.
PROMPTS = [
    [*SHARED[:kept], *other[: 12 + kept]]
    for kept, other in zip((11, 16, 19, 5), OTHERS, strict=True)
] + [
    SHARED,
    OTHERS[0],
]
CONFIG = EngineConfig(
    dtype="float32",
    num_threads=1,
    block_tokens=8,
    max_rows=6,
    max_step_tokens=48,
    max_context_tokens=96,
    kv_cache_tokens=1024,
    max_requests=64,
)
# A request needs up to 10 blocks: these hold little more than one.
TIGHT = {"kv_cache_tokens": 12 * 8}


@dataclass(frozen=True, slots=True)
class Reference:
    checkpoint: Path
    outputs: list[list[int]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"))
    outputs = reference_outputs(checkpoint, PROMPTS, num_tokens=NUM_OUTPUT_TOKENS)
    return Reference(checkpoint, outputs)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def generate(
    checkpoint: Path, config: EngineConfig, requests: list[GenerationRequest]
) -> tuple[list[list[int]], CoreStats]:
    """Runs the requests, one after another and then all at once, and returns what they bring."""
    model = describe(Executor(config, checkpoint))
    with running_loop_of(model, config) as harness:
        for request_id, asked in enumerate(requests):
            harness.submit(request_id, asked)
            if request_id % 2:
                harness.step()
        harness.run()
        for request_id, asked in enumerate(requests, start=len(requests)):
            harness.submit(request_id, asked)
        harness.run()
        check_at_rest(harness)
        told = [harness.heard.tokens[i, 0] for i in range(2 * len(requests))]
        return told, harness.stats()


def check_at_rest(harness: LoopHarness) -> None:
    stats = harness.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_paused) == (0, 0, 0)
    assert stats.num_blocks_used == 0


def run_greedily(reference: Reference, **settings: int | str | bool) -> CoreStats:
    requests = [request(*prompt, sampling=GREEDY, stop=STOP) for prompt in PROMPTS]

    told, stats = generate(reference.checkpoint, replace(CONFIG, **settings), requests)

    assert told == 2 * reference.outputs
    return stats


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
def test_under_forced_pauses(reference: Reference, every: int, ahead: int) -> None:
    stats = run_greedily(reference, fault_pause_every=every, run_ahead=ahead)

    assert stats.num_preemptions_total > 5


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_under_max_utilization_in_a_pool_too_small(reference: Reference, ahead: int) -> None:
    stats = run_greedily(
        reference,
        capacity_policy="max_utilization",
        watermark_blocks=0,
        cooldown_steps=1,
        run_ahead=ahead,
        kv_cache_tokens=20 * 8,
    )

    assert stats.num_preemptions_total > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"capacity_policy": "static_batch", "max_rows": 3},
        {"chunk_policy": "equal_progress", "chunk_tokens": 8},
        {"chunk_policy": "equal_progress", "run_ahead": 1},
        {"run_ahead": 1},
        {"run_ahead": 2},
        {"run_ahead": 2, "max_step_tokens": 14},
        {"fault_miss_every": 3, "run_ahead": 1},
    ],
    ids=str,
)
def test_under_other_policies_and_with_steps_ahead(
    reference: Reference, settings: dict[str, int | str]
) -> None:
    run_greedily(reference, **settings)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_through_the_host(reference: Reference, ahead: int) -> None:
    stats = run_greedily(reference, **TIGHT, host_cache_bytes=1 << 20, run_ahead=ahead)

    assert stats.num_offloads_total > 10
    assert stats.num_onloads_total > 10
    assert stats.num_host_blocks_used > 10


def test_through_the_host_with_pauses(reference: Reference) -> None:
    stats = run_greedily(
        reference, **TIGHT, host_cache_bytes=1 << 20, fault_pause_every=3, run_ahead=1
    )

    assert stats.num_onloads_total > 0
    assert stats.num_preemptions_total > 0


def test_through_a_host_that_is_full_too(reference: Reference) -> None:
    block_bytes = 2 * 2 * 2 * 16 * 4 * 8
    stats = run_greedily(reference, **TIGHT, host_cache_bytes=6 * block_bytes)

    assert stats.num_host_blocks == 6
    assert stats.num_offloads_total > 0


@pytest.mark.parametrize("every", [1, 2])
def test_where_the_host_has_no_room_now_and_then(reference: Reference, every: int) -> None:
    stats = run_greedily(
        reference,
        **TIGHT,
        host_cache_bytes=1 << 20,
        fault_fail_host_allocation_every=every,
        run_ahead=1,
    )

    assert (stats.num_offloads_total > 0) == (every > 1)


def test_going_on_inside_the_blocks_of_others(reference: Reference) -> None:
    with_parts = run_greedily(reference)
    whole_blocks_only = run_greedily(reference, partial_reuse=False)

    assert with_parts.num_copies_on_write_total > 0
    assert whole_blocks_only.num_copies_on_write_total == 0
    assert with_parts.num_reused_tokens_total > whole_blocks_only.num_reused_tokens_total


@pytest.mark.parametrize(
    "settings",
    [
        {"fault_pause_every": 1},
        {"fault_pause_every": 2, "run_ahead": 1},
        {"fault_pause_every": 3, "run_ahead": 2, "prefix_reuse": False},
        {"run_ahead": 2},
    ],
    ids=str,
)
def test_draws_with_penalties_are_those_of_an_undisturbed_engine(
    reference: Reference, settings: dict[str, int | bool]
) -> None:
    late_stop = StopParams(max_output_tokens=NUM_OUTPUT_TOKENS, min_output_tokens=6, end_ids=(2, 9))
    requests = [
        request(
            *prompt,
            sampling=SamplingParams(
                seed=31 * i,
                temperature=1.2,
                top_k=30 * (i % 2),
                repetition_penalty=1.4,
                presence_penalty=0.8,
                frequency_penalty=0.6,
            ),
            stop=late_stop,
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    undisturbed, _ = generate(reference.checkpoint, CONFIG, requests)

    disturbed, stats = generate(reference.checkpoint, replace(CONFIG, **settings), requests)

    assert disturbed == undisturbed
    assert (stats.num_preemptions_total > 0) == ("fault_pause_every" in settings)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_with_holds_at_random(reference: Reference, ahead: int) -> None:
    config = replace(CONFIG, run_ahead=ahead, host_cache_bytes=1 << 20, **TIGHT)
    rng = random.Random(ahead)
    model = describe(Executor(config, reference.checkpoint))
    num_held = 0
    with running_loop_of(model, config) as harness:
        for request_id, prompt in enumerate(PROMPTS):
            harness.submit(request_id, request(*prompt, sampling=GREEDY, stop=STOP))
        for _ in range(200):
            kind = rng.choice([Hold, Release])
            harness.send(kind(request_id=rng.randrange(len(PROMPTS))))
            harness.step()
            num_held += harness.stats().num_held
        harness.send(*(Release(request_id=request_id) for request_id in range(len(PROMPTS))))
        harness.run()
        check_at_rest(harness)

        told = [harness.heard.tokens[request_id, 0] for request_id in range(len(PROMPTS))]
    assert told == reference.outputs
    assert num_held > 0
