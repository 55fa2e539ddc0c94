"""Sessions that share a history with another."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_RERENDER,
    ForkSessionRequest,
    HistoryPoint,
    ListTurnsRequest,
    Retention,
    Session,
    Turn,
)
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import ErrorReason
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.sessions.cache_hints import number_of
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.listing import list_turns
from support.failing import refused
from support.session_bench import (
    FORK,
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    session_bench,
    start_turn,
    text_of,
)

REQUEST_ID = str(uuid.UUID(int=7))


async def three_turns(bench: SessionBench, **values: object) -> None:
    await bench.create(**values)
    for number in (1, 2, 3):
        await bench.run(f"{number}", f"t{number}")


async def test_a_fork_goes_on_from_the_head(bench: SessionBench):
    await three_turns(bench)
    parent = await bench.session()

    fork = await bench.fork()
    events = await bench.follow(start_turn("x", "t4"), FORK)

    assert (fork.parent_session, fork.fork_turn) == (KEY.name, KEY.turn_name("t3"))
    assert (fork.head_turn, fork.num_turns) == (FORK.turn_name("t3"), 3)
    assert events[-1].HasField("completed")
    whole = bench.prompts[2] + bench.outputs[2]
    assert bench.prompts[3][: len(whole)] == whole
    assert await bench.session() == parent


async def test_a_fork_goes_on_from_an_earlier_turn(bench: SessionBench):
    await three_turns(bench)

    fork = await bench.fork(turn=KEY.turn_name("t1"))
    await bench.follow(start_turn("2", "t2"), FORK)

    assert (fork.fork_turn, fork.num_turns) == (KEY.turn_name("t1"), 1)
    assert bench.prompts[3] == bench.prompts[1]
    assert [turn.name for turn in await bench.turns(FORK)] == [
        FORK.turn_name("t1"),
        FORK.turn_name("t2"),
    ]


async def test_shared_turns_are_listed_in_both(bench: SessionBench):
    await three_turns(bench)
    await bench.fork()

    request = ListTurnsRequest(session=FORK.name)
    shared = (await list_turns(bench.registry, "", request)).turns

    assert [turn.name for turn in shared] == [FORK.turn_name(f"t{n}") for n in (1, 2, 3)]
    assert [turn.parent_turn for turn in shared] == ["", *(turn.name for turn in shared[:2])]
    assert [turn.output.text for turn in shared] == [
        turn.output.text for turn in await bench.turns(KEY)
    ]


async def test_a_shared_turn_is_replayed_through_either_session(bench: SessionBench):
    await three_turns(bench)
    first = await bench.run("3", "t3")
    fork = await bench.fork()

    again = await bench.follow(start_turn("3", "t3"), FORK)
    taken = await refused(bench.follow(start_turn("other", "t3"), FORK))

    assert text_of(again) == text_of(first)
    assert again[-1].completed.etag == fork.etag
    assert taken.reason is ErrorReason.ID_TAKEN
    assert len(bench.prompts) == 3


async def test_a_fork_copies_what_the_session_is_now(bench: SessionBench):
    values = {
        "instructions": "be",
        "defaults": GenerationConfig(stop=StopConditions(stop_strings=["e"])),
        "retention": Retention(priority=9),
        "labels": {"k": "v"},
        "idle_ttl": Duration(seconds=500),
        "history_policy": HISTORY_POLICY_RERENDER,
    }
    await three_turns(bench, **values)

    fork = await bench.fork(turn=KEY.turn_name("t1"))

    for name, value in values.items():
        assert getattr(fork, name) == getattr(Session(**{name: value}), name)
    assert fork == await _without_residency(bench)


async def _without_residency(bench: SessionBench) -> Session:
    session = await bench.session(FORK)
    session.ClearField("residency")
    return session


async def test_a_session_is_forked_while_a_turn_runs(bench: SessionBench):
    await three_turns(bench)
    bench.engine.hold()
    running = asyncio.create_task(bench.run("4", "t4"))
    await eventually(lambda: len(bench.prompts) == 4)

    fork = await bench.fork()
    busy = await refused(bench.fork(session_id="other", turn=KEY.turn_name("t4")))
    bench.engine.release()
    await running

    assert fork.head_turn == FORK.turn_name("t3")
    assert busy.reason is ErrorReason.INVALID_FIELD
    assert "t4 has not ended" in busy.message


async def test_a_session_without_turns_is_forked(bench: SessionBench):
    await bench.create(instructions="be")

    fork = await bench.fork()
    await bench.follow(start_turn("hi"), FORK)
    await bench.run("hi")

    assert (fork.fork_turn, fork.head_turn, fork.num_turns) == ("", "", 0)
    assert bench.prompts[0] == bench.prompts[1]


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("sessions/a/turns/nowhere", ErrorReason.TURN_NOT_FOUND),
        ("sessions/a/turns/t3", ErrorReason.INVALID_FIELD),
        ("sessions/b/turns/t1", ErrorReason.INVALID_FIELD),
        ("t1", ErrorReason.INVALID_FIELD),
    ],
)
async def test_a_fork_of_no_turn_of_the_history_is_refused(
    bench: SessionBench, turn: str, reason: ErrorReason
):
    await three_turns(bench)
    await bench.rewind(to=HistoryPoint(turn=KEY.turn_name("t2")))

    assert (await refused(bench.fork(turn=turn))).reason is reason


async def test_a_retry_of_a_fork_gets_the_first_answer(bench: SessionBench):
    await three_turns(bench)
    first = await bench.fork(session_id="", request_id=REQUEST_ID)
    await bench.run("4", "t4")

    again = await bench.fork(session_id="", request_id=REQUEST_ID)
    other = await refused(bench.fork(session_id="x", request_id=REQUEST_ID))
    await bench.registry.delete(KEY, "")
    late = await bench.fork(session_id="", request_id=REQUEST_ID)

    assert first == again == late
    assert other.reason is ErrorReason.ID_TAKEN
    assert bench.registry.num_sessions == 1


async def test_retries_of_a_fork_side_by_side_make_one(bench: SessionBench):
    await three_turns(bench)

    forks = await asyncio.gather(
        *(bench.fork(session_id="", request_id=REQUEST_ID) for _ in range(4))
    )

    assert len({fork.name for fork in forks}) == 1
    assert bench.registry.num_sessions == 2


async def test_a_taken_id_and_the_quota_refuse_a_fork(spec: BenchSpec):
    async with session_bench(replace(spec, quotas=QuotaLimits(max_sessions=2))) as bench:
        await three_turns(bench)
        taken = await refused(bench.fork(session_id=KEY.session_id))
        await bench.fork()
        full = await refused(bench.fork(session_id="other"))

    assert taken.reason is ErrorReason.ID_TAKEN
    assert full.reason is ErrorReason.QUOTA_EXCEEDED


async def test_a_fork_lives_on_without_its_parent_and_over_a_restart(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await three_turns(bench)
        await bench.fork(turn=KEY.turn_name("t2"))
        whole = bench.prompts[1] + bench.outputs[1]
        await bench.registry.delete(KEY, "")
    async with session_bench(spec) as bench:
        await bench.follow(start_turn("x", "t9"), FORK)
        fork = await bench.session(FORK)

        assert bench.prompts[0][: len(whole)] == whole
        assert (fork.parent_session, fork.num_turns) == (KEY.name, 3)


async def test_a_fork_is_another_tenants_not_found(bench: SessionBench):
    await three_turns(bench)

    error = await refused(bench.registry.fork("other", ForkSessionRequest(name=KEY.name)))

    assert error.reason is ErrorReason.SESSION_NOT_FOUND


async def test_a_forks_first_turn_reuses_the_parents_cache(bench: SessionBench):
    await bench.create()
    await bench.run("x" * 70, "t1", max_tokens=40)
    await bench.fork()

    events = await bench.follow(start_turn("y"), FORK)

    shared = len(bench.prompts[0]) + len(bench.outputs[0]) - 1
    cached = events[-1].completed.usage.cached_prompt_tokens
    assert cached == shared // 32 * 32 > 64


async def test_the_engine_is_told_what_a_session_stands_on(bench: SessionBench):
    await bench.create(retention=Retention(priority=7, duration=Duration(seconds=9)))
    for number in (1, 2, 3):
        await bench.run(f"{number}", f"t{number}")
    parent, fork = number_of(KEY), number_of(FORK)
    behind_t2 = len(bench.prompts[1]) + len(bench.outputs[1])

    await bench.fork(turn=KEY.turn_name("t2"))
    await bench.rewind(to=HistoryPoint(turn=KEY.turn_name("t2")))
    await bench.rewind(to=HistoryPoint(start={}))
    await bench.registry.delete(KEY, "")

    assert bench.engine.hints == [
        ("fork", parent, fork),
        ("rewind", fork, behind_t2),
        ("rewind", parent, behind_t2),
        ("rewind", parent, 0),
        ("close", parent),
    ]
    request = bench.engine.requests[0].request
    assert (request.session, request.retention_priority) == (parent, 7)
    assert request.retention_us == 9_000_000


async def test_a_session_without_retention_has_the_servers(spec: BenchSpec):
    limits = SessionLimits(retention_s=2.0)
    async with session_bench(replace(spec, limits=limits)) as bench:
        await three_turns(bench)
        request = bench.engine.requests[0].request

    assert (request.retention_priority, request.retention_us) == (50, 2_000_000)
    assert {each.request.session for each in bench.engine.requests} == {number_of(KEY)}


async def test_a_superseded_turn_stays_in_a_fork(bench: SessionBench):
    await three_turns(bench)
    await bench.fork()

    await bench.rewind(to=HistoryPoint(start={}))

    assert {turn.state for turn in await bench.turns(FORK)} == {Turn.STATE_COMPLETED}
    assert {turn.state for turn in await bench.turns(KEY)} == {Turn.STATE_SUPERSEDED}
