"""The loop where requests are held: what is told, what rests, and what goes on afterwards."""

import random
from dataclasses import replace

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import (
    Cancel,
    FinishOutput,
    FinishReason,
    Hold,
    Release,
    SamplingParams,
    StopParams,
)
from support.loop_harness import request, running_loop
from support.scripted_engine import Script

SMALL = EngineConfig(block_tokens=8, max_rows=4, max_step_tokens=32, kv_cache_tokens=192)
TEXT = list(range(20, 60))
SCRIPT = Script(texts={"*": TEXT})
AHEAD = pytest.mark.parametrize("ahead", [0, 1, 2])


@AHEAD
def test_a_held_request_gets_no_tokens_but_those_under_way_and_later_all_others(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        harness.submit(1, request(1, 3, stop=StopParams(max_output_tokens=30), num_outputs=2))
        for _ in range(6):
            harness.step()
        before = {key: len(tokens) for key, tokens in harness.heard.tokens.items()}
        harness.send(Hold(request_id=1), Hold(request_id=1))
        harness.run()

        held = {key: len(tokens) for key, tokens in harness.heard.tokens.items()}
        assert all(held[key] - before[key] <= ahead for key in held)
        stats = harness.stats()
        assert (stats.num_held, stats.num_running, stats.num_blocks_used) == (2, 0, 0)
        assert not harness.heard.ended

        harness.send(Release(request_id=1), Release(request_id=1))
        harness.run()

        assert harness.heard.tokens[1, 0] == harness.heard.tokens[1, 1] == TEXT[:30]
        assert [ended.num_preemptions for [ended] in harness.heard.ended.values()] == [0, 0]
        assert len(harness.heard.started[1]) == 1
        assert harness.stats().num_held == 0


@AHEAD
def test_a_held_request_ends_by_cancel_and_by_the_caller(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        for request_id in (1, 2):
            harness.submit(request_id, request(1, 3, stop=StopParams(max_output_tokens=30)))
        for _ in range(6):
            harness.step()
        harness.send(Hold(request_id=1), Hold(request_id=2))
        harness.run()

        harness.send(Cancel(request_id=1))
        harness.send(FinishOutput(request_id=2, output_index=0, keep_tokens=2))
        harness.run()

        assert harness.heard.reasons(1) == [FinishReason.CANCELLED]
        assert harness.heard.reasons(2) == [FinishReason.FINISHED_BY_CALLER]
        stats = harness.stats()
        assert (stats.num_held, stats.num_blocks_used) == (0, 0)
        assert not harness.loop.busy


def test_holding_what_is_unknown_or_has_ended_is_ignored() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.send(Hold(request_id=9), Release(request_id=9))
        harness.submit(1, request(1, 3))
        harness.run()
        harness.send(Hold(request_id=1), Release(request_id=1))
        harness.run()

        assert harness.heard.reasons(1) == [FinishReason.MAX_OUTPUT_TOKENS]
        assert harness.stats().num_held == 0


def test_held_requests_are_no_stall_however_long_they_rest() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.submit(1, request(1, 3))
        harness.send(Hold(request_id=1))
        for _ in range(150):
            harness.stats()  # a pass each, more than a core that stalls goes through

        harness.send(Release(request_id=1))
        harness.run()

        assert harness.heard.tokens[1, 0] == TEXT[:8]


@AHEAD
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
def test_tokens_are_the_same_with_holds_at_random(ahead: int, policy: str) -> None:
    config = replace(
        SMALL, run_ahead=ahead, capacity_policy=policy, watermark_blocks=0, cooldown_steps=0
    )
    requests = {
        request_id: request(
            *range(1, 2 + 3 * request_id % 11),
            100 + request_id,
            sampling=SamplingParams(
                seed=request_id, temperature=1.5, repetition_penalty=1.3, frequency_penalty=0.5
            ),
            stop=StopParams(max_output_tokens=12),
            num_outputs=1 + request_id % 2,
        )
        for request_id in range(1, 9)
    }
    told = []
    for with_holds in (False, True):
        rng = random.Random(1)
        with running_loop(SCRIPT, config) as harness:
            for request_id, asked in requests.items():
                harness.submit(request_id, asked)
            for _ in range(300 if with_holds else 0):
                kind = rng.choice([Hold, Release, Release])
                harness.send(kind(request_id=rng.choice(list(requests))))
                harness.step()
            harness.send(*(Release(request_id=request_id) for request_id in requests))
            harness.run()
            assert harness.stats().num_blocks_used == 0
            told.append(dict(harness.heard.tokens))
            assert len(harness.heard.ended) == sum(r.num_outputs for r in requests.values())

    assert told[0] == told[1]
