import asyncio
from dataclasses import replace

import msgspec
import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_RERENDER,
    HistoryPoint,
    ListTurnsRequest,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    FINISH_REASON_MAX_OUTPUT_TOKENS,
    GenerationConfig,
    OutputOptions,
    PositionLogprobs,
    SamplingParams,
    StopConditions,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty

from antiphon_engine.api.errors import ErrorReason
from antiphon_server.sessions.listing import list_turns
from antiphon_server.sessions.turn_request import Frame, read_start_turn
from support.failing import refused
from support.fake_engine import FACTS, FakeEngine, fixed_ids
from support.fake_renderer import ANSWER, BEGIN, NEXT, REFUSED, TURN, FakeRenderer, ids_of
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    session_bench,
    start_turn,
    text_of,
)
from support.session_rows import user


async def test_a_turn_is_told_whole_and_kept(bench: SessionBench):
    await bench.create()

    events = await bench.run("hi", "t1")
    turn = await bench.turn("t1")
    session = await bench.session()

    completed = events[-1].completed
    assert completed.finish_reason == FINISH_REASON_MAX_OUTPUT_TOKENS
    assert completed.usage.output_tokens == 5
    assert (completed.etag, completed.kept_sequence) == (session.etag, events[-1].sequence)
    assert turn.state == Turn.STATE_COMPLETED
    assert turn.name == "sessions/a/turns/t1"
    assert turn.output.text == text_of(events)
    assert (turn.last_sequence, turn.epoch) == (events[-1].sequence, events[-1].epoch)
    assert turn.usage == completed.usage
    assert turn.config.stop.max_output_tokens == 5
    assert turn.config.sampling.seed == 7
    assert (session.head_turn, session.num_turns) == (turn.name, 1)


async def test_ids_are_kept_and_only_what_is_new_is_rendered(bench: SessionBench):
    await bench.create(instructions="be")

    for number in range(3):
        await bench.run("hi", f"t{number}")

    prompts, outputs = bench.prompts, bench.outputs
    assert prompts[0] == [BEGIN, *ids_of("be"), TURN, *ids_of("hi"), ANSWER]
    for number in (1, 2):
        new = [NEXT, TURN, *ids_of("hi"), ANSWER]
        assert prompts[number] == prompts[number - 1] + outputs[number - 1] + new
    residency = (await bench.session()).residency
    assert residency.context_tokens == len(prompts[2]) + len(outputs[2])
    assert residency.device_tokens <= residency.context_tokens


async def test_a_change_of_instructions_renders_the_head_anew_and_keeps_the_rest(
    bench: SessionBench,
):
    await bench.create(instructions="be")
    await bench.run("hi")
    async with bench.registry.use(KEY) as session:
        await session.update(
            lambda values: setattr(values, "instructions", "changed"), etag="", receipt=None
        )

    await bench.run("more")
    await bench.run("last")

    first, second, third = bench.prompts
    head = [BEGIN, *ids_of("changed"), TURN, *ids_of("hi"), ANSWER]
    assert second == head + bench.outputs[0] + [NEXT, TURN, *ids_of("more"), ANSWER]
    assert third == second + bench.outputs[1] + [NEXT, TURN, *ids_of("last"), ANSWER]
    assert first != second[: len(first)]


async def test_rerender_renders_all_anew(bench: SessionBench):
    await bench.create(history_policy=HISTORY_POLICY_RERENDER)

    first = await bench.run("hi")
    await bench.run("more")

    renderer = FakeRenderer()
    answer = user(text_of(first))
    expected = renderer.render_conversation([user("hi"), answer, user("more")])
    assert bench.prompts[1] == expected.token_ids
    assert (await bench.session()).residency.context_tokens > len(bench.prompts[1])


async def test_appended_items_enter_the_next_prompt(bench: SessionBench):
    await bench.create(items=[user("zero")])

    appended = await bench.append("one", "a1")
    await bench.append("two")
    await bench.run("")
    await bench.append("three")
    await bench.run("four")

    assert [event.WhichOneof("event") for event in appended] == ["accepted", "completed"]
    first = [BEGIN, TURN, *ids_of("zero"), TURN, *ids_of("one"), TURN, *ids_of("two"), ANSWER]
    assert bench.prompts[0] == first
    new = [NEXT, TURN, *ids_of("three"), TURN, *ids_of("four"), ANSWER]
    assert bench.prompts[1] == first + bench.outputs[0] + new
    assert (await bench.session()).num_turns == 6


async def test_there_must_be_something_to_answer(bench: SessionBench):
    await bench.create()

    before = await refused(bench.run(""))
    await bench.run("hi")
    after = await refused(bench.run(""))

    for error in (before, after):
        assert error.reason is ErrorReason.INVALID_FIELD
        assert error.violations[0].field == "turn.items"


async def test_a_restart_keeps_turns_and_ids_and_the_next_turn_goes_on(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create(instructions="be")
        await bench.run("hi", "t1")
        await bench.append("and", "a1")
        turns = [await bench.turn(turn_id) for turn_id in ("t1", "a1")]
        context = bench.prompts[0] + bench.outputs[0]

    async with session_bench(spec) as bench:
        kept = [await bench.turn(turn_id) for turn_id in ("t1", "a1")]
        await bench.run("more", "t2")

        assert kept == turns
        new = [NEXT, TURN, *ids_of("and"), TURN, *ids_of("more"), ANSWER]
        assert bench.prompts == [context + new]
        assert (await bench.turn("t2")).parent_turn == "sessions/a/turns/a1"


async def test_a_refused_template_fails_the_turn_and_leaves_the_session_as_before(
    bench: SessionBench,
):
    await bench.create()
    await bench.run("hi", "t1")
    before = await bench.session()

    events = await bench.run(REFUSED, "t2")
    after = await bench.session()
    await bench.run("legal", "t3")

    assert events[-1].failed.reason == "TEMPLATE_ERROR"
    assert (await bench.turn("t2")).failure == events[-1].failed
    assert (after.head_turn, after.num_turns, after.etag) == (
        before.head_turn,
        before.num_turns,
        before.etag,
    )
    new = [NEXT, TURN, *ids_of("legal"), ANSWER]
    assert bench.prompts[1] == bench.prompts[0] + bench.outputs[0] + new


async def test_a_retry_replays_the_turn_and_runs_nothing(bench: SessionBench):
    await bench.create()
    wants = {"max_tokens": 7}
    first = await bench.run("hi", "t1", **wants)

    again = await bench.run("hi", "t1", **wants)

    assert len(bench.engine.requests) == 1
    assert text_of(again) == text_of(first)
    assert again[-1] == first[-1]
    assert again[1].started == first[1].started


async def test_a_replay_tells_the_etag_that_the_turn_made(bench: SessionBench):
    await bench.create()
    told = (await bench.run("hi", "t1"))[-1].completed.etag
    await bench.run("more", "t2")

    again = (await bench.run("hi", "t1"))[-1].completed.etag

    assert again == told != (await bench.session()).etag


async def test_a_replay_after_a_restart_tells_the_prompt_and_tokens_too(spec: BenchSpec):
    asked = start_turn("more", "t2")
    asked.config.output.CopyFrom(
        OutputOptions(token_ids=True, prompt_token_ids=True, top_logprobs=2)
    )
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("hi", "t1")
        first = await bench.follow(asked)
        await bench.run("later", "t3")
    async with session_bench(spec) as bench:
        again = await bench.follow(asked)

    def told(events):
        deltas = [event.delta for event in events if event.HasField("delta")]
        return (
            [i for event in events for i in event.prompt_part.token_ids],
            [i for delta in deltas for i in delta.token_ids],
            [entry for delta in deltas for entry in delta.logprobs],
            text_of(events),
        )

    assert told(again) == told(first)
    assert len(told(first)[0]) > 10
    assert len(told(first)[2]) == 5


async def test_a_retry_of_a_running_turn_attaches_to_it(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    first = asyncio.create_task(bench.run("hi", "t1"))
    second = asyncio.create_task(bench.run("hi", "t1"))
    await asyncio.sleep(0.1)
    bench.engine.release()

    events = await asyncio.gather(first, second)

    assert len(bench.engine.requests) == 1
    assert text_of(events[0]) == text_of(events[1])


@pytest.mark.parametrize(
    "other",
    [
        start_turn("other", "t1"),
        start_turn("hi", "t1", max_tokens=6),
        start_turn("hi", "t1", expected_head=HistoryPoint(start=Empty())),
    ],
)
async def test_an_id_with_other_content_is_taken(bench: SessionBench, other: StartTurn):
    await bench.create()
    await bench.run("hi", "t1")

    error = await refused(bench.follow(other))

    assert error.reason is ErrorReason.ID_TAKEN
    assert error.metadata["turn"] == "sessions/a/turns/t1"


async def test_a_failed_turn_keeps_its_id_and_replays_its_failure(bench: SessionBench):
    await bench.create()
    first = await bench.run(REFUSED, "t1")

    again = await bench.run(REFUSED, "t1")

    assert again[-1].failed == first[-1].failed


async def test_an_expected_head_that_has_moved_fails_the_turn(bench: SessionBench):
    await bench.create()
    await bench.run("hi", "t1", expected_head=HistoryPoint(start=Empty()))

    ok = await bench.run("x", "t2", expected_head=HistoryPoint(turn="sessions/a/turns/t1"))
    stale = await bench.run("x", "t3", expected_head=HistoryPoint(turn="sessions/a/turns/t1"))

    assert ok[-1].HasField("completed")
    assert stale[-1].failed.reason == "STALE_HEAD"
    assert stale[-1].failed.metadata["current_head"] == "sessions/a/turns/t2"


async def test_a_full_session_says_so_and_a_too_long_first_prompt_too(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()

        too_long = await bench.run("x" * 300, max_tokens=1)
        await bench.run("x" * 100, max_tokens=100)
        too_much = await bench.run("x", max_tokens=100)
        full = await bench.run("x" * 100, max_tokens=1)

    assert too_long[-1].failed.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert too_much[-1].failed.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert full[-1].failed.reason == "SESSION_FULL"
    assert full[-1].failed.metadata["limit"] == "256"


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        (StartTurn(turn_id="no spaces"), "turn.turn_id"),
        (StartTurn(if_busy=9), "turn.if_busy"),
        (StartTurn(on_disconnect=9), "turn.on_disconnect"),
        (StartTurn(timeout=Duration(seconds=-1)), "turn.timeout"),
        (StartTurn(expected_head=HistoryPoint()), "turn.expected_head"),
        (StartTurn(expected_head=HistoryPoint(turn="x")), "turn.expected_head.turn"),
        (
            StartTurn(
                items=[user("x")],
                config=GenerationConfig(sampling=SamplingParams(temperature=-1)),
            ),
            "turn.config.sampling.temperature",
        ),
    ],
)
async def test_a_field_at_fault_is_named_and_leaves_no_trace(
    bench: SessionBench, turn: StartTurn, field: str
):
    await bench.create()

    error = await refused(bench.follow(turn))

    assert error.reason is ErrorReason.INVALID_FIELD
    assert [violation.field for violation in error.violations] == [field]
    listed = await list_turns(bench.registry, "", ListTurnsRequest(session=KEY.name, show_all=True))
    assert not listed.turns


def test_a_turn_has_its_own_trace_state_or_none():
    parent = f"00-{5:032x}-{6:016x}-01"

    own = read_start_turn(StartTurn(traceparent=parent, tracestate="a=b"), Frame(path="turn"))
    broken = read_start_turn(StartTurn(traceparent="no", tracestate="a=b"), Frame(path="turn"))

    assert (own.trace.traceparent, own.trace.tracestate) == (parent, "a=b")
    assert (broken.trace.traceparent, broken.trace.tracestate) == ("", "")


async def test_defaults_hold_under_the_turns_own_values(spec: BenchSpec):
    spec.engine = lambda: FakeEngine(script=fixed_ids(300, 301))
    async with session_bench(spec) as bench:
        await bench.create(
            defaults=GenerationConfig(sampling=SamplingParams(temperature=0.5, top_k=3))
        )
        config = GenerationConfig(sampling=SamplingParams(top_k=4))
        config.stop.max_output_tokens = 2
        await bench.follow(StartTurn(turn_id="t1", items=[user("x")], config=config))
        sampling = (await bench.turn("t1")).config.sampling

    assert (sampling.temperature, sampling.top_k) == (0.5, 4)


async def test_a_retry_replays_whole_what_came_in_one_piece(spec: BenchSpec):
    facts = msgspec.structs.replace(FACTS, context_tokens=8192, kv_cache_tokens=16384)
    config = GenerationConfig(
        stop=StopConditions(max_output_tokens=2000, ignore_eos=True),
        output=OutputOptions(top_logprobs=0, token_ids=True),
    )
    start = StartTurn(turn_id="t", items=[user("hi")], config=config)
    async with session_bench(replace(spec, engine=lambda: FakeEngine(facts=facts))) as bench:
        await bench.create()
        bench.engine.hold()
        running = asyncio.create_task(bench.follow(start))
        await eventually(lambda: bool(bench.engine.requests))
        bench.engine.step(2000)

        told = await running
        again = await bench.follow(start)

    assert sum(event.HasField("delta") for event in told) == 1
    assert deltas_of(again) == deltas_of(told)


def deltas_of(events: list[TurnEvent]) -> tuple[str, list[int], list[PositionLogprobs]]:
    deltas = [event.delta for event in events]
    return (
        text_of(events),
        [token_id for delta in deltas for token_id in delta.token_ids],
        [entry for delta in deltas for entry in delta.logprobs],
    )
