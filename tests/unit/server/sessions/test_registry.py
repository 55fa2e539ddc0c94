import asyncio
import uuid
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    ListSessionsRequest,
    Retention,
    Session,
    Turn,
    UpdateSessionRequest,
)
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions, Tool
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from antiphon_engine.api.errors import ErrorReason
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.listing import list_sessions
from antiphon_server.sessions.records import SessionKey
from antiphon_server.times import to_ns
from support.failing import refused
from support.session_bench import KEY, BenchSpec, SessionBench, eventually, session_bench
from support.session_rows import completed_row, session_row, turn_row, user

DAY_S = 86400


def mask(*paths: str) -> FieldMask:
    return FieldMask(paths=paths)


async def test_a_session_is_told_as_it_was_made(bench: SessionBench):
    told = await bench.create(
        instructions="be",
        labels={"k": "v"},
        defaults=GenerationConfig(stop=StopConditions(max_output_tokens=3)),
        items=[user("zero")],
    )
    read = await bench.session()

    assert told.name == "sessions/a"
    assert told.model == "models/tiny"
    assert told.state == Session.STATE_IDLE
    assert told.num_turns == 1
    assert told.head_turn
    assert told.etag
    read.ClearField("residency")
    assert read == told
    assert to_ns(told.expire_time) == bench.clock.wall_ns + 7 * DAY_S * 10**9


async def test_output_only_fields_are_the_servers_own(bench: SessionBench):
    told = await bench.create(name="sessions/other", num_turns=9, etag="x", parent_session="y")

    assert (told.name, told.num_turns, told.parent_session) == ("sessions/a", 0, "")


async def test_an_id_is_drawn_where_none_is_given(bench: SessionBench):
    told = await bench.registry.create("", CreateSessionRequest())

    assert told.name == "sessions/drawn1"


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (CreateSessionRequest(session_id="Bad"), "INVALID_FIELD", "session_id"),
        (CreateSessionRequest(request_id="7"), "INVALID_FIELD", "request_id"),
        (
            CreateSessionRequest(session=Session(history_policy=7)),
            "INVALID_FIELD",
            "session.history_policy",
        ),
        (
            CreateSessionRequest(session=Session(labels={str(n): "" for n in range(65)})),
            "INVALID_FIELD",
            "session.labels",
        ),
        (
            CreateSessionRequest(session=Session(labels={"k": "v" * 257})),
            "INVALID_FIELD",
            "session.labels['k']",
        ),
        (
            CreateSessionRequest(session=Session(idle_ttl=Duration())),
            "INVALID_FIELD",
            "session.idle_ttl",
        ),
        (
            CreateSessionRequest(session=Session(latest_expire_time=Timestamp(seconds=1))),
            "INVALID_FIELD",
            "session.latest_expire_time",
        ),
        (
            CreateSessionRequest(session=Session(retention=Retention(duration=Duration()))),
            "INVALID_FIELD",
            "session.retention.duration",
        ),
        (CreateSessionRequest(session=Session(model="models/x")), "MODEL_NOT_FOUND", ""),
        (CreateSessionRequest(session=Session(tools=[Tool(name="t")])), "UNSUPPORTED_FEATURE", ""),
        (
            CreateSessionRequest(session=Session(retention=Retention(priority=101))),
            "INVALID_FIELD",
            "session.retention.priority",
        ),
        (
            CreateSessionRequest(
                session=Session(defaults=GenerationConfig(adapter="models/tiny/adapters/none"))
            ),
            "UNSUPPORTED_FEATURE",
            "",
        ),
    ],
)
async def test_a_session_at_fault_is_refused_by_name(
    bench: SessionBench, request_: CreateSessionRequest, reason: str, field: str
):
    error = await refused(bench.registry.create("", request_))

    assert error.reason.value == reason
    assert [violation.field for violation in error.violations] == ([field] if field else [])
    assert bench.registry.num_sessions == 0


async def test_a_model_without_a_chat_template_takes_no_sessions(bench: SessionBench):
    renderer = bench.model.renderer
    renderer.chat = False

    error = await refused(bench.create())

    assert error.reason is ErrorReason.NO_CHAT_TEMPLATE


async def test_creating_and_updating_are_safe_to_retry(bench: SessionBench):
    create = CreateSessionRequest(session_id="a", request_id=str(uuid.UUID(int=1)))
    first = await bench.registry.create("", create)
    again = await bench.registry.create("", create)
    update = UpdateSessionRequest(
        session=Session(name=KEY.name, instructions="new", etag=first.etag),
        update_mask=mask("instructions"),
        request_id=str(uuid.UUID(int=2)),
    )

    changed = await bench.registry.update("", update)
    changed_again = await bench.registry.update("", update)
    update.session.instructions = "other"
    taken = await refused(bench.registry.update("", update))

    assert first == again
    assert changed == changed_again
    assert changed.instructions == "new"
    assert changed.etag != first.etag
    assert taken.reason is ErrorReason.ID_TAKEN
    assert bench.registry.num_sessions == 1


async def test_an_update_changes_the_named_fields_alone(bench: SessionBench):
    await bench.create(instructions="old", labels={"k": "v"})

    told = await bench.registry.update(
        "",
        UpdateSessionRequest(
            session=Session(name=KEY.name, instructions="ignored", labels={"n": "w"}),
            update_mask=mask("labels", "idle_ttl"),
        ),
    )

    assert told.instructions == "old"
    assert dict(told.labels) == {"n": "w"}
    listed = await list_sessions(bench.registry, "", ListSessionsRequest(labels={"n": "w"}))
    assert [session.name for session in listed.sessions] == [KEY.name]
    assert not (
        await list_sessions(bench.registry, "", ListSessionsRequest(labels={"k": "v"}))
    ).sessions


@pytest.mark.parametrize("paths", [[], ["name"], ["defaults.sampling"], ["*"], ["labels"] * 8])
async def test_an_update_mask_at_fault_is_refused(bench: SessionBench, paths: list[str]):
    await bench.create()
    request = UpdateSessionRequest(session=Session(name=KEY.name), update_mask=mask(*paths))

    error = await refused(bench.registry.update("", request))

    assert error.reason is ErrorReason.INVALID_FIELD
    assert error.violations[0].field.startswith("update_mask")


async def test_a_stale_etag_changes_and_deletes_nothing(bench: SessionBench):
    old = await bench.create()
    await bench.run("hi", "t1")
    request = UpdateSessionRequest(
        session=Session(name=KEY.name, etag=old.etag, instructions="x"),
        update_mask=mask("instructions"),
    )

    errors = [
        await refused(bench.registry.update("", request)),
        await refused(bench.registry.delete(KEY, old.etag)),
    ]

    for error in errors:
        assert error.reason is ErrorReason.STALE_HEAD
        assert error.metadata["current_head"] == "sessions/a/turns/t1"
    assert (await bench.session()).instructions == ""


async def test_a_deleted_session_is_not_found_and_its_id_is_free(bench: SessionBench):
    await bench.create()
    await bench.run("hi", "t1")

    await bench.registry.delete(KEY, "")
    gone = await refused(bench.session())
    await bench.create()

    assert gone.reason is ErrorReason.SESSION_NOT_FOUND
    assert gone.metadata["session"] == KEY.name
    assert (await bench.session()).num_turns == 0


async def test_another_tenants_session_is_not_found(bench: SessionBench):
    await bench.create()

    async def use() -> None:
        async with bench.registry.use(SessionKey("other", "a")):
            pass

    assert (await refused(use())).reason is ErrorReason.SESSION_NOT_FOUND


async def test_the_quota_of_sessions_holds(spec: BenchSpec):
    spec.quotas = QuotaLimits(max_sessions=1)
    async with session_bench(spec) as bench:
        await bench.create()
        error = await refused(bench.registry.create("", CreateSessionRequest()))
        other = await bench.registry.create("other", CreateSessionRequest())

    assert error.reason is ErrorReason.QUOTA_EXCEEDED
    # The one that is there goes after its idle time, and makes room.
    assert error.retry_delay_s == 7 * 86400
    assert other.name


async def test_an_idle_session_expires_and_says_when(bench: SessionBench):
    await bench.create(idle_ttl=Duration(seconds=10))
    bench.clock.pass_s(9)
    await bench.run("hi")
    bench.clock.pass_s(9)
    assert (await bench.session()).num_turns == 1
    bench.clock.pass_s(2)

    error = await refused(bench.session())
    again = await refused(bench.session())
    listed = await list_sessions(bench.registry, "", ListSessionsRequest())

    assert error.reason is again.reason is ErrorReason.SESSION_EXPIRED
    assert error.metadata["expire_time"] == again.metadata["expire_time"]
    assert not listed.sessions
    assert bench.registry.num_sessions == 0


async def test_a_session_expires_at_its_latest_whatever_happens(bench: SessionBench):
    latest = Timestamp(seconds=bench.clock.wall_ns // 10**9 + 5)
    await bench.create(latest_expire_time=latest)
    await bench.run("hi")
    assert (await bench.session()).expire_time == latest
    bench.clock.pass_s(6)

    assert (await refused(bench.session())).reason is ErrorReason.SESSION_EXPIRED


async def test_a_session_that_works_does_not_expire_before_its_turn_ends(bench: SessionBench):
    await bench.create(idle_ttl=Duration(seconds=10))
    bench.engine.hold()
    running = asyncio.create_task(bench.run("hi", "t1"))
    await eventually(lambda: bool(bench.engine.requests))
    bench.clock.pass_s(100)

    active = await bench.session()
    row = await bench.store.read_session(KEY)
    assert row is not None
    await bench.registry.expire(row)
    bench.engine.release()
    events = await running

    assert active.state == Session.STATE_ACTIVE
    assert events[-1].HasField("completed")
    assert (await bench.session()).num_turns == 1


async def test_the_sweeper_deletes_what_has_expired(spec: BenchSpec):
    spec.limits = SessionLimits(sweep_interval_s=0.01)
    async with session_bench(spec) as bench:
        await bench.create(idle_ttl=Duration(seconds=10))
        bench.clock.pass_s(11)
        await eventually(lambda: not bench.registry.num_sessions)

        assert await bench.store.read_session(KEY) is None


async def test_idle_sessions_leave_memory_and_come_back_whole(spec: BenchSpec):
    spec.limits = SessionLimits(max_loaded=1)
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.run("hi", "t1")
        for _ in range(3):
            other = await bench.registry.create("", CreateSessionRequest())
            async with bench.registry.use(SessionKey("", other.name.split("/")[1])):
                pass
        await bench.run("more", "t2")

    assert bench.prompts[1][: len(bench.prompts[0]) + 5] == bench.prompts[0] + bench.outputs[0]


async def test_what_a_crash_left_unfinished_is_failed_at_the_next_start(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        await bench.store.accept_turn(KEY, turn_row(1, key=KEY))

    async with session_bench(spec) as bench:
        left, session = await bench.turn("t1"), await bench.session()
        assert not await bench.store.list_unfinished()
        events = await bench.run("hi", "t2")

    assert left.state == Turn.STATE_FAILED
    assert left.failure.reason == "ENGINE_DOWN"
    assert session.num_turns == 0
    assert events[-1].HasField("completed")


async def test_a_store_that_cannot_be_written_refuses_the_turn_and_keeps_the_session(
    bench: SessionBench,
):
    await bench.create()
    row = await bench.store.read_session(KEY)
    assert row is not None
    # A server that was started later has taken the session.
    await bench.store._writer.run(lambda file: file.execute("UPDATE sessions SET epoch = 99"))

    error = await refused(bench.run("hi", "t1"))
    await bench.store._writer.run(lambda file: file.execute("UPDATE sessions SET epoch = 1"))
    events = await bench.run("hi", "t1")

    assert error.reason is ErrorReason.STORE_UNAVAILABLE
    assert events[-1].HasField("completed")
    assert bench.engine.num_running == 0


def test_rows_differ_by_their_values():
    assert session_row() == session_row()
    assert replace(session_row(), version=2) != session_row()
    assert completed_row(1) != completed_row(2)
