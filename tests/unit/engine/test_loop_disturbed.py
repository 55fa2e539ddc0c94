"""The loop where requests end or are paused under way: late results, resumes, hints, stalls."""

from dataclasses import replace

import msgspec
import pytest
from structlog.testing import capture_logs

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import (
    Cancel,
    CloseSession,
    FinishReason,
    ForkSession,
    GenerationRequest,
    MatchPrefix,
    RewindSession,
    SamplingParams,
    Scope,
    StopParams,
    TokenLogprobs,
)
from support.loop_harness import LoopHarness, request, running_loop
from support.scripted_engine import Script

END = 2
SCRIPT = Script(texts={"*": [5, 6, 7, 8, END]})
SMALL = EngineConfig(block_tokens=8, max_rows=4, max_step_tokens=32, kv_cache_tokens=192)
AHEAD = pytest.mark.parametrize("ahead", [1, 2])

Stream = tuple[list[int], list[TokenLogprobs], FinishReason]


def endless(*prompt: int, top_logprobs: int | None = None) -> GenerationRequest:
    return request(*prompt, stop=StopParams(max_output_tokens=100), top_logprobs=top_logprobs)


@AHEAD
def test_request_cancelled_in_its_first_step_never_starts(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        harness.submit(1, endless(1, 3, top_logprobs=2))
        harness.step()  # launched, not committed
        harness.send(Cancel(request_id=1))
        harness.run()

        assert harness.heard.reasons(1) == [FinishReason.CANCELLED]
        assert harness.heard.ended[1, 0][0].num_tokens == 0
        assert (harness.heard.started[1], harness.heard.tokens[1, 0]) == ([], [])
        assert harness.heard.logprobs[1, 0] == []


@AHEAD
def test_results_of_an_ended_request_are_not_taken_for_those_of_its_follower(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead, max_requests=2)) as harness:
        harness.submit(1, endless(1, 3))
        harness.step()
        for request_id in range(2, 12):
            harness.send(Cancel(request_id=request_id - 1))
            harness.submit(request_id, endless(1, 3 + request_id))
            harness.step()
        harness.send(Cancel(request_id=11))
        harness.run()

        for request_id in range(1, 12):
            [ended] = harness.heard.ended[request_id, 0]
            assert ended.num_tokens == len(harness.heard.tokens[request_id, 0])
            assert len(harness.heard.started[request_id]) <= 1
        stats = harness.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)


@AHEAD
def test_logprobs_come_with_tokens_alone(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        stop = StopParams(max_output_tokens=50, end_ids=(END,))
        harness.submit(1, request(1, 3, stop=stop, top_logprobs=1))
        harness.submit(2, endless(1, 4, top_logprobs=1))
        harness.run()

        for request_id, num_tokens in ((1, 5), (2, 100)):
            assert len(harness.heard.tokens[request_id, 0]) == num_tokens
            assert len(harness.heard.logprobs[request_id, 0]) == num_tokens


DISTURBANCES = [
    {"fault_pause_every": 1},
    {"fault_pause_every": 2, "run_ahead": 1},
    {"fault_pause_every": 3, "run_ahead": 2, "partial_reuse": False},
    {"fault_miss_every": 2, "fault_pause_every": 2},
    {"capacity_policy": "max_utilization", "kv_cache_tokens": 128, "cooldown_steps": 1},
    {"capacity_policy": "max_utilization", "kv_cache_tokens": 128, "run_ahead": 2},
    {"capacity_policy": "static_batch", "run_ahead": 1},
    {"chunk_policy": "equal_progress", "chunk_tokens": 8},
    {"host_cache_bytes": 8 << 10, "kv_cache_tokens": 128, "run_ahead": 1},
    {"prefix_reuse": False, "run_ahead": 2},
    {"fault_delay_commit_ms": 1, "run_ahead": 1},
]


@pytest.mark.parametrize("settings", DISTURBANCES, ids=str)
def test_streams_are_those_of_an_undisturbed_engine(settings: dict[str, int | str]) -> None:
    undisturbed, _ = streams(SMALL)
    disturbed, harness = streams(replace(SMALL, **settings))

    assert disturbed == undisturbed
    for (request_id, _), ends in harness.heard.ended.items():
        assert len(ends) == 1
        assert len(harness.heard.started[request_id]) == 1
    num_preemptions = sum(
        ended.num_preemptions for ends in harness.heard.ended.values() for ended in ends
    )
    if "fault_pause_every" in settings:
        assert num_preemptions > 0


def streams(config: EngineConfig) -> tuple[dict[tuple[int, int], Stream], LoopHarness]:
    """What requests of all kinds bring, submitted while others run."""
    with running_loop(SCRIPT, config) as harness:
        for request_id, asked in enumerate(mixed_requests(), start=1):
            harness.submit(request_id, asked)
            harness.step()
        harness.run()
        stats = harness.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_paused) == (0, 0, 0)
        assert stats.num_blocks_used == 0
        heard = harness.heard
        told = {
            key: (heard.tokens[key], heard.logprobs[key], ends[0].reason)
            for key, ends in heard.ended.items()
        }
        for key, ends in heard.ended.items():
            assert ends[0].num_tokens == len(heard.tokens[key])
        return told, harness


def mixed_requests() -> list[GenerationRequest]:
    hot = SamplingParams(seed=11, temperature=40.0)
    penalised = SamplingParams(
        seed=12,
        temperature=30.0,
        repetition_penalty=1.7,
        presence_penalty=1.5,
        frequency_penalty=1.5,
        top_k=300,
    )
    long_stop = StopParams(max_output_tokens=24)
    late_end = StopParams(max_output_tokens=24, min_output_tokens=12, end_ids=(END,))
    return [
        request(*range(100, 120), sampling=hot, stop=long_stop, num_outputs=2),
        request(*range(100, 130), sampling=penalised, stop=long_stop),
        request(1, 3, stop=StopParams(max_output_tokens=9, end_ids=(END,))),
        request(*range(100, 117), sampling=penalised, stop=late_end, top_logprobs=2),
        request(4, stop=late_end),
        request(*range(200, 240), sampling=hot, stop=long_stop, num_outputs=2),
        request(*range(100, 112), 9, sampling=hot, stop=long_stop, top_logprobs=0),
    ]


def test_what_a_closed_session_left_goes_first() -> None:
    older, newer = range(100, 140), range(300, 340)
    with running_loop(SCRIPT, replace(SMALL, kv_cache_tokens=128)) as harness:
        stop = StopParams(max_output_tokens=1)
        harness.submit(1, request(*older, stop=stop))
        harness.run()
        harness.submit(2, msgspec.structs.replace(request(*newer, stop=stop), session=77))
        harness.run()

        harness.send(CloseSession(session=77))
        harness.submit(3, request(*range(500, 560), stop=stop))
        harness.run()

        assert cached_tokens(harness, older) > cached_tokens(harness, newer)


def cached_tokens(harness: LoopHarness, prompt: range) -> int:
    query_id = 1000 + prompt[0]
    harness.send(MatchPrefix(query_id=query_id, scope=Scope(), tokens=request(*prompt).prompt))
    harness.step()
    answer = harness.heard.answers[query_id]
    assert isinstance(answer, int)
    return answer


def test_hints_of_no_sense_are_passed_over() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.send(
            CloseSession(session=-1),
            CloseSession(session=0),
            CloseSession(session=5),
            ForkSession(session=2**63, new_session=2**64 - 1),
            ForkSession(session=1, new_session=-(2**63)),
            ForkSession(session=0, new_session=0),
            ForkSession(session=3, new_session=3),
            RewindSession(session=1, num_tokens=-1),
            RewindSession(session=1, num_tokens=2**40),
            RewindSession(session=0, num_tokens=0),
        )
        harness.submit(1, endless(1, 3))
        harness.run()

        assert len(harness.heard.tokens[1, 0]) == 100


def test_stall_ends_the_loop_with_its_census_in_the_log() -> None:
    with (
        running_loop(SCRIPT, replace(SMALL, fault_max_admissions=1)) as harness,
        capture_logs() as logs,
    ):
        harness.submit(8, request(1))
        harness.run()
        assert harness.heard.reasons(8) == [FinishReason.MAX_OUTPUT_TOKENS]
        harness.submit(9, endless(1))

        with pytest.raises(_native.StalledError):
            harness.loop.run()

    [line] = [entry for entry in logs if entry["log_level"] == "error"]
    assert (line["event"], line["request_ids"]) == ("engine stalled", [9])
    assert "waiting=1" in line["census"]
    assert "[queued" in line["census"]
