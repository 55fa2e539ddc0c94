import random
from dataclasses import replace

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import (
    Cancel,
    FinishOutput,
    FinishReason,
    FlushPrefixCache,
    MatchPrefix,
    SamplingParams,
    Scope,
    Shutdown,
    StopParams,
)
from support.loop_harness import LoopHarness, request, running_loop
from support.scripted_engine import Script

END = 2
SCRIPT = Script(texts={"*": [5, 6, 7, 8, END]})
SMALL = EngineConfig(
    block_tokens=8, max_rows=4, max_step_tokens=16, kv_cache_tokens=256, max_requests=12
)


@pytest.fixture(params=[0, 1, 2], ids=lambda depth: f"{depth}-ahead")
def ahead(request: pytest.FixtureRequest) -> int:
    """Steps that may be under way when another is planned."""
    return int(request.param)


def stop(max_output_tokens: int = 8, *, end_ids: tuple[int, ...] = (END,)) -> StopParams:
    return StopParams(max_output_tokens=max_output_tokens, end_ids=end_ids)


def assert_at_rest(harness: LoopHarness) -> None:
    stats = harness.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert stats.num_blocks_free + stats.num_blocks_cached == stats.num_blocks


def test_request_gets_its_tokens_and_one_end(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, 3, stop=stop()))
        harness.run()

        assert harness.heard.tokens[1, 0] == [5, 6, 7, 8, END]
        [ended] = harness.heard.ended[1, 0]
        assert (ended.reason, ended.num_tokens) == (FinishReason.END_ID, 5)
        # Steps that were ahead when the end came were for nothing, and don't count.
        assert ended.num_steps == 5
        assert [s.cached_prompt_tokens for s in harness.heard.started[1]] == [0]
        assert_at_rest(harness)


@pytest.mark.parametrize(
    ("stop_params", "reason", "num_tokens"),
    [
        (StopParams(max_output_tokens=3, end_ids=(END,)), FinishReason.MAX_OUTPUT_TOKENS, 3),
        (StopParams(max_output_tokens=9, stop_ids=(7,)), FinishReason.STOP_ID, 3),
        (StopParams(max_output_tokens=9, end_ids=(6, END)), FinishReason.END_ID, 2),
        (StopParams(max_output_tokens=600), FinishReason.CONTEXT_FULL, 510),
    ],
)
def test_output_ends_for_the_reason_that_comes_first(
    stop_params: StopParams, reason: FinishReason, num_tokens: int, ahead: int
) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, 3, stop=stop_params))
        harness.run()

        assert harness.heard.reasons(1) == [reason]
        assert harness.heard.ended[1, 0][0].num_tokens == num_tokens
        assert len(harness.heard.tokens[1, 0]) == num_tokens


def test_many_outputs_share_one_prompt_and_differ_by_index(ahead: int) -> None:
    sampling = SamplingParams(seed=42, temperature=50.0)
    prompt = range(100, 164)
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(*prompt, sampling=sampling, stop=stop(6), num_outputs=3))
        harness.run()
        harness.submit(2, request(*prompt, sampling=sampling, stop=stop(6), num_outputs=3))
        harness.run()

        first = [harness.heard.tokens[1, i] for i in range(3)]
        second = [harness.heard.tokens[2, i] for i in range(3)]
        stats = harness.stats()
        assert len({tuple(tokens) for tokens in first}) == 3
        assert first == second
        assert len(harness.heard.started[1]) == 1
        # The last prompt token is always computed.
        assert stats.num_prefilled_tokens_total == 64 + 5
        assert_at_rest(harness)


def test_warm_prompt_tells_how_much_was_cached(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        for request_id in (1, 2):
            harness.submit(request_id, request(*range(10, 110), stop=stop()))
            harness.run()

        assert [s.cached_prompt_tokens for s in harness.heard.started[2]] == [99]
        assert harness.heard.tokens[2, 0] == harness.heard.tokens[1, 0]


def test_queries_are_answered(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        prompt = request(*range(10, 110), stop=stop()).prompt
        harness.submit(1, request(*range(10, 110), stop=stop()))
        harness.run()
        harness.send(
            MatchPrefix(query_id=100, scope=Scope(), tokens=prompt),
            MatchPrefix(query_id=101, scope=Scope(tenant="other"), tokens=prompt),
            FlushPrefixCache(query_id=102),
            MatchPrefix(query_id=103, scope=Scope(), tokens=prompt),
        )
        harness.step()

        assert harness.heard.answers == {100: 96, 101: 0, 102: 4, 103: 0}


def test_finished_outputs_are_counted_by_the_contracts_reasons(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, stop=stop()))
        harness.submit(2, request(1, stop=stop(2)))
        harness.submit(3, request(1, stop=StopParams(max_output_tokens=9, stop_ids=(6,))))
        harness.submit(4, request(1, 5000, stop=stop()))
        harness.run()

        assert harness.stats().num_finished_total == {
            "STOP": 1,
            "MAX_OUTPUT_TOKENS": 1,
            "STOP_SEQUENCE": 1,
            "INVALID_FIELD": 1,
        }


def test_finished_output_keeps_what_is_wanted_and_gets_no_more(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, num_outputs=2, stop=stop(100, end_ids=())))
        for _ in range(5):
            harness.step()
        harness.send(FinishOutput(request_id=1, output_index=1, keep_tokens=2))
        harness.run()
        harness.send(FinishOutput(request_id=1, output_index=1, keep_tokens=2))
        harness.run()

        assert harness.heard.reasons(1) == [
            FinishReason.MAX_OUTPUT_TOKENS,
            FinishReason.FINISHED_BY_CALLER,
        ]
        assert harness.heard.ended[1, 1][0].num_tokens == 2
        assert len(harness.heard.tokens[1, 1]) < 6
        assert_at_rest(harness)


def test_cancelled_request_tells_how_far_it_came(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, stop=stop(100, end_ids=())))
        for _ in range(4):
            harness.step()
        harness.send(Cancel(request_id=1))
        harness.run()

        [ended] = harness.heard.ended[1, 0]
        assert ended.reason is FinishReason.CANCELLED
        assert ended.num_tokens == len(harness.heard.tokens[1, 0]) == 4 - ahead
        assert ended.num_steps == 4 - ahead


def test_request_that_can_never_fit_fails_with_the_numbers(ahead: int) -> None:
    config = EngineConfig(kv_cache_tokens=64, max_context_tokens=512)
    with running_loop(SCRIPT, replace(config, run_ahead=ahead)) as harness:
        harness.submit(1, request(*range(70), stop=stop()))
        harness.run()

        [failed] = harness.heard.failed[1]
        assert failed.reason == "NEVER_FITS"
        assert failed.metadata == {"needed_blocks": "3", "available_blocks": "2"}


def test_request_beyond_the_context_fails(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(*[3] * 512, stop=stop()))
        harness.run()

        assert [f.reason for f in harness.heard.failed[1]] == ["CONTEXT_LENGTH_EXCEEDED"]


def test_request_whose_last_output_finds_no_room_is_refused_whole(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        harness.submit(1, request(1, num_outputs=10, stop=stop()))
        harness.submit(2, request(1, num_outputs=3, stop=stop()))
        harness.submit(3, request(1, num_outputs=2, stop=stop()))
        harness.run()

        assert [f.reason for f in harness.heard.failed[2]] == ["OVERLOADED"]
        assert harness.heard.reasons(2) == []
        assert len(harness.heard.reasons(1)) == 10
        assert len(harness.heard.reasons(3)) == 2
        assert_at_rest(harness)


@pytest.mark.parametrize(
    "bad",
    [
        request(),
        request(1024),
        request(-1),
        request(1, sampling=SamplingParams(seed=0, logit_bias={1024: 1.0})),
        request(1, sampling=SamplingParams(seed=0, logit_bias={-1: 1.0})),
        request(1, sampling=SamplingParams(seed=0, logit_bias={3: float("nan")})),
        request(1, sampling=SamplingParams(seed=0, temperature=float("nan"))),
        request(1, sampling=SamplingParams(seed=0, temperature=float("inf"))),
        request(1, sampling=SamplingParams(seed=0, temperature=-0.1)),
        request(1, sampling=SamplingParams(seed=0, top_p=0.0)),
        request(1, sampling=SamplingParams(seed=0, min_p=1.5)),
        request(1, sampling=SamplingParams(seed=0, repetition_penalty=0.0)),
        request(1, sampling=SamplingParams(seed=-1)),
        request(1, stop=StopParams(max_output_tokens=0)),
        request(1, stop=StopParams(max_output_tokens=5, min_output_tokens=6)),
        request(1, stop=StopParams(max_output_tokens=5, stop_ids=(1024,))),
        request(1, stop=StopParams(max_output_tokens=5, stop_ids=(2**31,))),
        request(1, num_outputs=0),
    ],
    ids=lambda r: str(r)[:80],
)
def test_request_out_of_range_fails_alone(bad, ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, stop=stop()))
        harness.submit(2, bad)
        harness.submit(3, request(1, stop=stop()))
        harness.run()

        assert [f.reason for f in harness.heard.failed[2]] == ["INVALID_FIELD"]
        assert harness.heard.tokens[1, 0] == harness.heard.tokens[3, 0] == [5, 6, 7, 8, END]


def test_end_ids_beyond_the_vocabulary_are_of_no_effect(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, stop=stop(end_ids=(END, 1024, 2**31))))
        harness.run()

        assert harness.heard.reasons(1) == [FinishReason.END_ID]


def test_shutdown_ends_the_loop(ahead: int) -> None:
    with running_loop(SCRIPT, EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(1, stop=stop()))
        harness.send(Shutdown())

        harness.loop.run()  # returns


def test_step_failure_is_raised_so_that_the_process_ends(ahead: int) -> None:
    with running_loop(Script(raise_on=[9]), EngineConfig(run_ahead=ahead)) as harness:
        harness.submit(1, request(9))

        with pytest.raises(RuntimeError, match="the script says so"):
            harness.loop.run()


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_end_once_each_and_leave_nothing_behind(seed: int, ahead: int) -> None:
    rng = random.Random(seed)
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        live: dict[int, int] = {}
        for request_id in range(1, 61):
            num_outputs = rng.choice([1, 1, 2, 3])
            prompt = [rng.choice([3, 4])] * rng.randint(1, 40) + [rng.randint(3, 9)]
            end_ids = rng.choice([(END,), ()])
            harness.submit(
                request_id,
                request(
                    *prompt,
                    num_outputs=num_outputs,
                    sampling=SamplingParams(seed=request_id, temperature=rng.choice([0.0, 9.0])),
                    stop=stop(rng.randint(1, 30), end_ids=end_ids),
                ),
            )
            live[request_id] = num_outputs
            for _ in range(rng.randint(0, 3)):
                harness.step()
            _interfere(rng, harness, live)
        harness.run()

        for request_id, num_outputs in live.items():
            failed = harness.heard.failed[request_id]
            ends = [harness.heard.ended[request_id, i] for i in range(num_outputs)]
            if failed:
                assert (len(failed), ends) == (1, [[]] * num_outputs)
            else:
                assert [len(ended) for ended in ends] == [1] * num_outputs
            for i, ended in enumerate(ends):
                if ended and ended[0].reason is not FinishReason.FINISHED_BY_CALLER:
                    assert ended[0].num_tokens == len(harness.heard.tokens[request_id, i])
        assert_at_rest(harness)


def _interfere(rng: random.Random, harness: LoopHarness, live: dict[int, int]) -> None:
    request_id = rng.choice(list(live))
    if rng.random() < 0.4:
        harness.send(Cancel(request_id=request_id))
    elif rng.random() < 0.3:
        output_index = rng.randrange(live[request_id])
        num_told = len(harness.heard.tokens[request_id, output_index])
        if num_told:
            harness.send(
                FinishOutput(
                    request_id=request_id,
                    output_index=output_index,
                    keep_tokens=rng.randint(0, num_told),
                )
            )
    if rng.random() < 0.2:
        harness.send(Cancel(request_id=9999))
