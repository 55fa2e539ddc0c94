"""Sessions that come, go and come back under one id, or are too large to be told."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import CreateSessionRequest, Session, UpdateSessionRequest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.times import NS_PER_S, to_timestamp
from support.failing import refused
from support.session_bench import KEY, BenchSpec, SessionBench, session_bench


async def test_callers_who_wait_for_a_session_together_all_get_it(spec: BenchSpec):
    spec = replace(spec, limits=SessionLimits(max_loaded=0, sweep_interval_s=3600.0))
    async with session_bench(spec) as bench:
        await bench.create()

        async def present() -> Session:
            async with bench.registry.use(KEY) as session:
                return session.present()

        told = await asyncio.gather(*(present() for _ in range(4)))

    assert [session.name for session in told] == [KEY.name] * 4


async def test_the_id_of_an_expired_session_is_free(bench: SessionBench):
    await bench.create(idle_ttl=Duration(seconds=1), instructions="old")
    bench.clock.pass_s(2)

    told = await bench.create(instructions="new")

    assert told.instructions == (await bench.session()).instructions == "new"
    assert bench.registry.num_sessions == 1


async def how_missing(bench: SessionBench) -> ErrorReason:
    return (await refused(bench.session())).reason


async def test_expired_is_told_from_unknown_after_a_restart_too(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create(idle_ttl=Duration(seconds=10))
        await bench.run("hi")
    async with session_bench(spec) as bench:
        # It ran out while no server was there to see it.
        bench.clock.pass_s(11)
        seen_late = await how_missing(bench)
    async with session_bench(spec) as bench:
        seen_before = await how_missing(bench)
        bench.clock.pass_s(bench.registry.surroundings.limits.expired_memory_s)
        await bench.registry._sweeper.sweep()
        forgotten = await how_missing(bench)

    assert seen_late is seen_before is ErrorReason.SESSION_EXPIRED
    assert forgotten is ErrorReason.SESSION_NOT_FOUND


@pytest.mark.parametrize("num_turns", [0, 3])
async def test_turns_put_off_the_idle_time_and_not_the_latest_time_over_restarts(
    spec: BenchSpec, num_turns: int
):
    latest = to_timestamp(spec.clock.wall_ns + 25 * NS_PER_S)
    async with session_bench(spec) as bench:
        await bench.create(idle_ttl=Duration(seconds=10), latest_expire_time=latest)
    for _ in range(num_turns):
        async with session_bench(spec) as bench:
            bench.clock.pass_s(8)
            await bench.run("hi")
    async with session_bench(spec) as bench:
        bench.clock.pass_s(0.5 if num_turns else 9.5)
        assert (await bench.session()).num_turns == num_turns
        bench.clock.pass_s(1)

        assert await how_missing(bench) is ErrorReason.SESSION_EXPIRED


async def test_expiry_that_was_seen_late_spares_a_new_session_under_the_id(bench: SessionBench):
    await bench.create(idle_ttl=Duration(seconds=1))
    seen = await bench.store.read_session(KEY)
    assert seen is not None
    bench.clock.pass_s(2)
    await bench.create(instructions="new")

    await bench.registry.expire(seen)

    assert (await bench.session()).instructions == "new"
    assert bench.registry.num_sessions == 1


async def test_a_session_that_no_answer_could_hold_is_refused(bench: SessionBench):
    instructions = "x" * (4 << 20)

    error = await refused(bench.create(instructions=instructions))

    assert error.reason is ErrorReason.RESPONSE_TOO_LARGE
    assert bench.registry.num_sessions == 0
    await bench.create(instructions="short")
    change = UpdateSessionRequest(
        session=Session(name=KEY.name, instructions=instructions),
        update_mask=FieldMask(paths=["instructions"]),
    )
    error = await refused(bench.registry.update("", change))
    assert error.reason is ErrorReason.RESPONSE_TOO_LARGE
    assert (await bench.session()).instructions == "short"


async def test_one_request_id_serves_one_of_two_updates_at_once(bench: SessionBench):
    for session_id in ("a", "b"):
        await bench.registry.create("", CreateSessionRequest(session_id=session_id))
    updates = [
        UpdateSessionRequest(
            session=Session(name=f"sessions/{session_id}", instructions="new"),
            update_mask=FieldMask(paths=["instructions"]),
            request_id=str(uuid.UUID(int=1)),
        )
        for session_id in ("a", "b")
    ]

    told = await asyncio.gather(
        *(bench.registry.update("", update) for update in updates), return_exceptions=True
    )

    (failed,) = [each for each in told if isinstance(each, AntiphonError)]
    assert failed.reason is ErrorReason.ID_TAKEN


async def test_retries_are_answered_also_when_their_session_has_gone(bench: SessionBench):
    end = to_timestamp(bench.clock.read() + 60 * NS_PER_S)
    create = CreateSessionRequest(
        session_id="a", session=Session(latest_expire_time=end), request_id=str(uuid.UUID(int=1))
    )
    update = UpdateSessionRequest(
        session=Session(name=KEY.name, instructions="be"),
        update_mask=FieldMask(paths=["instructions"]),
        request_id=str(uuid.UUID(int=2)),
    )
    created = await bench.registry.create("", create)
    updated = await bench.registry.update("", update)
    bench.clock.pass_s(61)
    assert await how_missing(bench) is ErrorReason.SESSION_EXPIRED

    assert await bench.registry.create("", create) == created
    assert await bench.registry.update("", update) == updated
    assert await how_missing(bench) is ErrorReason.SESSION_EXPIRED
