"""Turns that take the session back, go on with an answer, or clear defaults."""

import asyncio
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    HistoryPoint,
    ListTurnsRequest,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import GenerationConfig, OutputOptions, StopConditions
from google.protobuf.field_mask_pb2 import FieldMask

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.listing import list_turns
from support.failing import refused
from support.fake_engine import FakeEngine, fixed_ids
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

START = HistoryPoint(start={})


def behind(turn_id: str) -> HistoryPoint:
    return HistoryPoint(turn=KEY.turn_name(turn_id))


def go_on(turn_id: str = "", **values: object) -> StartTurn:
    return start_turn("", turn_id, continue_answer=True, **values)


async def states(bench: SessionBench) -> dict[str, int]:
    request = ListTurnsRequest(session=KEY.name, show_all=True)
    listed = await list_turns(bench.registry, "", request)
    return {turn.name.rpartition("/")[2]: turn.state for turn in listed.turns}


async def three_turns(bench: SessionBench, **values: object) -> None:
    await bench.create(**values)
    for number in (1, 2, 3):
        await bench.run(f"{number}", f"t{number}")


@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_a_turn_answers_from_an_earlier_place(bench: SessionBench, policy: int):
    await three_turns(bench, history_policy=policy)

    events = await bench.follow(start_turn("2", "t4", rewind_to=behind("t1")))

    assert events[-1].HasField("completed")
    assert bench.prompts[3] == bench.prompts[1]
    session = await bench.session()
    assert (session.head_turn, session.num_turns) == (KEY.turn_name("t4"), 2)
    assert session.etag == events[-1].completed.etag
    assert (await bench.turn("t4")).parent_turn == KEY.turn_name("t1")
    assert await states(bench) == {
        "t1": Turn.STATE_COMPLETED,
        "t2": Turn.STATE_SUPERSEDED,
        "t3": Turn.STATE_SUPERSEDED,
        "t4": Turn.STATE_COMPLETED,
    }


async def test_a_turn_answers_from_the_start(bench: SessionBench):
    await three_turns(bench)

    await bench.follow(start_turn("1", "t4", rewind_to=START))

    assert bench.prompts[3] == bench.prompts[0]
    assert (await bench.session()).num_turns == 1


async def test_a_turn_that_fails_leaves_the_history_as_it_was(bench: SessionBench):
    await three_turns(bench)
    bench.engine.hold()
    running = asyncio.create_task(bench.follow(start_turn("x", "t4", rewind_to=START)))
    await eventually(lambda: len(bench.engine.requests) == 4)
    bench.engine.fail_all(AntiphonError(ErrorReason.NEVER_FITS, "it said no"))

    events = await running
    bench.engine.release()
    await bench.run("4", "t5")

    assert events[-1].failed.reason == "NEVER_FITS"
    assert list((await states(bench)).values()).count(Turn.STATE_SUPERSEDED) == 0
    assert bench.prompts[4][: len(bench.prompts[2])] == bench.prompts[2]


async def test_turns_behind_it_stand_on_it(bench: SessionBench):
    await three_turns(bench)
    bench.engine.hold()
    runs = [
        asyncio.create_task(bench.follow(start_turn("x", "t4", rewind_to=behind("t1")))),
        asyncio.create_task(bench.run("y", "t5")),
        asyncio.create_task(bench.follow(start_turn("z", "t6", rewind_to=behind("t4")))),
    ]
    await eventually(lambda: len(bench.engine.requests) == 4)
    bench.engine.release()
    await asyncio.gather(*runs)

    assert bench.prompts[4][: len(bench.prompts[3])] == bench.prompts[3]
    assert bench.prompts[5][: len(bench.prompts[3])] == bench.prompts[3]
    assert (await bench.session()).num_turns == 3
    assert (await bench.turn("t5")).state == Turn.STATE_SUPERSEDED


async def test_the_history_is_the_same_after_a_restart(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await three_turns(bench)
        await bench.follow(start_turn("x", "t4", rewind_to=behind("t1")))
        prompt, output = bench.prompts[3], bench.outputs[3]
    async with session_bench(spec) as bench:
        await bench.run("y", "t5")

        assert bench.prompts[0][: len(prompt) + len(output)] == prompt + output
        assert (await bench.session()).num_turns == 3


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (behind("nowhere"), "TURN_NOT_FOUND"),
        (behind("t2"), "INVALID_FIELD"),
        (HistoryPoint(turn="sessions/other/turns/t1"), "INVALID_FIELD"),
    ],
)
async def test_a_place_that_is_not_in_the_history_fails_the_turn(
    bench: SessionBench, point: HistoryPoint, reason: str
):
    await three_turns(bench)
    await bench.follow(start_turn("x", "t4", rewind_to=behind("t1")))

    events = await bench.follow(start_turn("x", "t5", rewind_to=point))

    assert events[-1].failed.reason == reason
    assert (await bench.session()).head_turn == KEY.turn_name("t4")


async def test_the_expected_head_is_the_one_before_the_rewind(bench: SessionBench):
    await three_turns(bench)

    stale = await bench.follow(
        start_turn("x", "t4", rewind_to=behind("t1"), expected_head=behind("t1"))
    )
    right = await bench.follow(
        start_turn("x", "t5", rewind_to=behind("t1"), expected_head=behind("t3"))
    )

    assert stale[-1].failed.reason == "STALE_HEAD"
    assert right[-1].HasField("completed")


async def test_a_turn_without_items_behind_an_answer_fails(bench: SessionBench):
    await three_turns(bench)

    events = await bench.follow(start_turn("", "t4", rewind_to=behind("t1")))

    assert events[-1].failed.reason == "INVALID_FIELD"


async def test_a_superseded_turn_is_replayed_and_keeps_its_id(bench: SessionBench):
    await three_turns(bench)
    first = await bench.run("2", "t2")
    await bench.follow(start_turn("x", "t4", rewind_to=START))

    again = await bench.run("2", "t2")
    taken = await refused(bench.run("other", "t2"))

    assert text_of(again) == text_of(first)
    assert again[-1].HasField("completed")
    assert taken.reason is ErrorReason.ID_TAKEN


async def test_a_superseded_turn_tells_its_prompt_again_after_a_restart(spec: BenchSpec):
    config = GenerationConfig(
        stop=StopConditions(max_output_tokens=4), output=OutputOptions(prompt_token_ids=True)
    )
    starts = [
        start_turn(f"{number}", f"t{number}", config=config, rewind_to=place)
        for number, place in enumerate([START, behind("t0"), behind("t0"), behind("t2"), START])
    ]
    async with session_bench(spec) as bench:
        await bench.create()
        told = [prompt_of(await bench.follow(start)) for start in starts]
        assert told == bench.prompts
    async with session_bench(spec) as bench:
        again = [prompt_of(await bench.follow(start)) for start in starts]

        assert not bench.prompts
    assert again == told


def prompt_of(events: list[TurnEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.prompt_part.token_ids]


@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_an_answer_goes_on_where_it_ended(bench: SessionBench, policy: int):
    await bench.create(history_policy=policy)
    first = await bench.run("hi", "t1", max_tokens=4)

    second = await bench.follow(go_on("t2", max_tokens=3))
    third = await bench.follow(go_on("t3", max_tokens=2))
    await bench.run("next", "t4")

    prompts, outputs = bench.prompts, bench.outputs
    assert prompts[1] == prompts[0] + outputs[0]
    assert prompts[2] == prompts[1] + outputs[1]
    answer = text_of([*first, *second, *third])
    session = await bench.session()
    assert session.num_turns == 4
    if policy == HISTORY_POLICY_KEEP_TOKENS:
        whole = prompts[2] + outputs[2]
        assert prompts[3][: len(whole)] == whole
    else:
        rendered = bench.model.renderer.render_conversation(
            [user("hi"), user(answer), user("next")]
        )
        assert prompts[3] == rendered.token_ids


@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_an_answer_goes_on_after_a_restart(spec: BenchSpec, policy: int):
    async with session_bench(spec) as bench:
        await bench.create(history_policy=policy)
        await bench.run("hi", "t1", max_tokens=4)
        await bench.follow(go_on("t2", max_tokens=3))
        whole = bench.prompts[1] + bench.outputs[1]
    async with session_bench(spec) as bench:
        await bench.follow(go_on("t3", max_tokens=3))

        assert bench.prompts == [whole]


async def test_an_earlier_answer_goes_on(bench: SessionBench):
    await three_turns(bench)

    await bench.follow(go_on("t4", rewind_to=behind("t1")))

    assert bench.prompts[3] == bench.prompts[0] + bench.outputs[0]


async def test_an_answer_that_the_model_ended_does_not_go_on(spec: BenchSpec):
    engine = FakeEngine(script=fixed_ids(300, 301))
    async with session_bench(replace(spec, engine=lambda: engine)) as bench:
        await bench.create()
        nothing = await bench.follow(go_on("t0"))
        await bench.run("hi", "t1", max_tokens=10)
        ended = await bench.follow(go_on("t2"))
        await bench.run("hi", "t3", max_tokens=1)
        await bench.append("more", "t4")
        appended = await bench.follow(go_on("t5"))

    for events, words in (
        (nothing, "the session has no turns"),
        (ended, "ended with FINISH_REASON_STOP"),
        (appended, "t4 has no answer"),
    ):
        assert events[-1].failed.reason == "INVALID_FIELD"
        assert words in events[-1].failed.message


async def test_new_items_and_an_answer_that_goes_on_exclude_each_other(bench: SessionBench):
    await bench.create()

    error = await refused(bench.follow(start_turn("x", continue_answer=True)))

    assert [violation.field for violation in error.violations] == ["turn.continue_answer"]


async def test_cleared_defaults_do_not_hold_for_the_turn(bench: SessionBench):
    defaults = GenerationConfig(
        stop=StopConditions(stop_strings=["e"], min_output_tokens=2),
        sampling={"temperature": 0.25, "top_k": 7},
    )
    await bench.create(defaults=defaults)
    mask = FieldMask(paths=["stop.stop_strings", "sampling", "reasoning.enabled"])

    await bench.follow(start_turn("hi", "t1", clear_defaults=mask))
    await bench.run("hi", "t2")

    cleared, plain = (await bench.turn("t1")).config, (await bench.turn("t2")).config
    assert (list(cleared.stop.stop_strings), cleared.stop.min_output_tokens) == ([], 2)
    assert (cleared.sampling.top_k, plain.sampling.top_k) == (0, 7)
    assert list(plain.stop.stop_strings) == ["e"]


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("samplng", "sampling"),
        ("stop.stop_string", "stop.stop_strings"),
        ("stop.time_limit.seconds", "stop.time_limit"),
        ("x" * 500, ""),
    ],
)
async def test_an_unknown_default_is_refused_with_the_nearest(
    bench: SessionBench, path: str, nearest: str
):
    await bench.create()
    mask = FieldMask(paths=["sampling", path])

    error = await refused(bench.follow(start_turn("hi", clear_defaults=mask)))

    (violation,) = error.violations
    assert violation.field == "turn.clear_defaults.paths[1]"
    assert nearest in violation.description


async def test_more_paths_than_there_are_fields_are_refused(bench: SessionBench):
    await bench.create()
    mask = FieldMask(paths=["sampling"] * 1000)

    error = await refused(bench.follow(start_turn("hi", clear_defaults=mask)))

    assert [violation.field for violation in error.violations] == ["turn.clear_defaults.paths"]


@pytest.mark.parametrize(
    "values",
    [
        {"rewind_to": START},
        {"clear_defaults": FieldMask(paths=["sampling"])},
        {"expected_head": START},
    ],
)
async def test_what_a_turn_stands_on_tells_it_from_another(
    bench: SessionBench, values: dict[str, object]
):
    await bench.create()
    first = await bench.follow(start_turn("hi", "t1", **values))

    again = await bench.follow(start_turn("hi", "t1", **values))
    other = await refused(bench.run("hi", "t1"))

    assert text_of(again) == text_of(first)
    assert other.reason is ErrorReason.ID_TAKEN
