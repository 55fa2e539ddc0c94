"""A tiny model goes on with an output that was cut anywhere as if it had never stopped."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import FinishReason, SamplingParams, StopParams
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.loop_harness import LoopHarness, request, running_loop_of
from support.tiny_checkpoints import make_checkpoint, prompts

NUM_OUTPUT_TOKENS = 24
[PROMPT] = prompts(1, least=30, most=30)
CONFIG = EngineConfig(
    dtype="float32",
    num_threads=1,
    block_tokens=8,
    max_rows=8,
    max_step_tokens=64,
    max_context_tokens=96,
    kv_cache_tokens=1024,
    max_requests=64,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def uncut(harness: LoopHarness, sampling: SamplingParams, stop: StopParams) -> list[int]:
    harness.submit(1000, request(*PROMPT, sampling=sampling, stop=stop))
    harness.run()
    return harness.heard.tokens[1000, 0]


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=3, temperature=0.0),
        SamplingParams(seed=2**64 - 1, temperature=1.5),
        SamplingParams(seed=4, temperature=0.8, top_k=30, top_p=0.95, min_p=0.001),
        SamplingParams(seed=5, temperature=0.0, repetition_penalty=2.5),
        SamplingParams(
            seed=6, temperature=1.0, presence_penalty=1.5, frequency_penalty=-1.0, top_k=50
        ),
    ],
    ids=str,
)
def test_every_cut_gives_the_tokens_of_the_uncut_output(
    checkpoint: Path, sampling: SamplingParams, ahead: int
) -> None:
    config = replace(CONFIG, run_ahead=ahead)
    stop = StopParams(max_output_tokens=NUM_OUTPUT_TOKENS)
    with running_loop_of(describe(Executor(config, checkpoint)), config) as harness:
        whole = uncut(harness, sampling, stop)
        assert len(whole) == NUM_OUTPUT_TOKENS
        for cut in range(1, NUM_OUTPUT_TOKENS):
            ids = [*PROMPT, *whole[:cut]]
            harness.submit(cut, request(*ids, sampling=sampling, stop=stop, num_resumed=cut))
            if cut % 3:
                harness.step()
        harness.run()

        for cut in range(1, NUM_OUTPUT_TOKENS):
            assert whole[:cut] + harness.heard.tokens[cut, 0] == whole
            [ended] = harness.heard.ended[cut, 0]
            assert ended.reason is FinishReason.MAX_OUTPUT_TOKENS
            assert ended.num_tokens == NUM_OUTPUT_TOKENS
        stats = harness.stats()
        assert stats.num_reused_tokens_total > 0
        assert stats.num_blocks_used == 0


def test_least_output_counts_what_was_there_before_the_cut(checkpoint: Path) -> None:
    free = SamplingParams(seed=3, temperature=0.0)
    with running_loop_of(describe(Executor(CONFIG, checkpoint)), CONFIG) as harness:
        plain = uncut(harness, free, StopParams(max_output_tokens=NUM_OUTPUT_TOKENS))
    # The model would say its end at once, and again and again.
    stop = StopParams(
        max_output_tokens=NUM_OUTPUT_TOKENS, min_output_tokens=10, end_ids=(plain[0], plain[12])
    )
    with running_loop_of(describe(Executor(CONFIG, checkpoint)), CONFIG) as harness:
        whole = uncut(harness, free, stop)
        assert len(whole) >= 10
        for cut in range(1, len(whole)):
            ids = [*PROMPT, *whole[:cut]]
            harness.submit(cut, request(*ids, sampling=free, stop=stop, num_resumed=cut))
        harness.run()

        for cut in range(1, len(whole)):
            assert whole[:cut] + harness.heard.tokens[cut, 0] == whole
            [ended] = harness.heard.ended[cut, 0]
            assert ended.reason is harness.heard.ended[1000, 0][0].reason


def test_a_pause_behind_the_cut_changes_nothing(checkpoint: Path) -> None:
    sampling = SamplingParams(seed=8, temperature=1.0, frequency_penalty=1.0)
    stop = StopParams(max_output_tokens=NUM_OUTPUT_TOKENS)
    paused = replace(CONFIG, fault_pause_every=2)
    with running_loop_of(describe(Executor(CONFIG, checkpoint)), CONFIG) as harness:
        whole = uncut(harness, sampling, stop)
    with running_loop_of(describe(Executor(paused, checkpoint)), paused) as harness:
        asked = request(*PROMPT, *whole[:7], sampling=sampling, stop=stop, num_resumed=7)
        harness.submit(1, asked)
        harness.run()

        assert whole[:7] + harness.heard.tokens[1, 0] == whole
        assert harness.heard.ended[1, 0][0].num_preemptions > 0
