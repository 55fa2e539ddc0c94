import asyncio

from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    ListSessionsRequest,
    ListTurnsRequest,
    Turn,
)

from antiphon_server.sessions.listing import list_sessions, list_turns
from antiphon_server.sessions.records import TurnQuery
from support.failing import refused
from support.session_bench import KEY, SessionBench, eventually


async def test_sessions_are_paged(bench: SessionBench):
    for number in range(5):
        bench.clock.pass_s(1)
        await bench.registry.create("", CreateSessionRequest(session_id=f"s{number}"))

    names, token = [], ""
    for _ in range(3):
        page = await list_sessions(
            bench.registry, "", ListSessionsRequest(page_size=2, page_token=token)
        )
        names += [session.name for session in page.sessions]
        token = page.next_page_token

    assert names == [f"sessions/s{number}" for number in (4, 3, 2, 1, 0)]
    assert token == ""
    error = await refused(
        list_sessions(bench.registry, "", ListSessionsRequest(page_token="made up"))
    )
    assert error.violations[0].field == "page_token"


async def test_turns_are_paged_and_bounded_in_bytes(bench: SessionBench):
    await bench.create()
    for number in range(5):
        await bench.append("x" * 600_000, f"a{number}")

    ids, sizes, token = [], [], ""
    while not ids or token:
        page = await list_turns(
            bench.registry, "", ListTurnsRequest(session=KEY.name, page_token=token)
        )
        ids += [turn.name.rsplit("/")[-1] for turn in page.turns]
        sizes.append(page.ByteSize())
        token = page.next_page_token

    assert ids == ["a0", "a1", "a2", "a3", "a4"]
    assert len(sizes) > 1
    assert max(sizes) <= 2 << 20


async def test_failed_turns_are_listed_on_request(bench: SessionBench):
    await bench.create()
    await bench.run("x" * 300, "t1")
    await bench.run("hi", "t2")

    async def ids(**values: bool) -> list[str]:
        request = ListTurnsRequest(session=KEY.name, **values)
        page = await list_turns(bench.registry, "", request)
        return [turn.name.rsplit("/")[-1] for turn in page.turns]

    assert await ids() == ["t2"]
    assert await ids(show_all=True) == ["t1", "t2"]
    assert await ids(show_all=True, newest_first=True) == ["t2", "t1"]


async def test_a_running_turn_is_listed_with_its_partial_output(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.run("hi", "t1"))
    await eventually(lambda: bool(bench.engine.requests))
    bench.engine.step(3)
    await asyncio.sleep(0.02)

    page = await list_turns(bench.registry, "", ListTurnsRequest(session=KEY.name))
    read = await bench.turn("t1")
    bench.engine.release()
    events = await running

    assert list(page.turns) == [read]
    assert read.state == Turn.STATE_RUNNING
    assert read.output.text
    assert "".join(event.delta.text for event in events).startswith(read.output.text)
    assert 2 < read.last_sequence < events[-1].sequence


async def test_a_turn_that_ends_while_a_page_is_read_is_told_as_it_ended(bench: SessionBench):
    await bench.create()
    bench.engine.hold()
    running = asyncio.create_task(bench.run("hi", "t1"))
    await eventually(lambda: bool(bench.engine.requests))
    async with bench.registry.use(KEY) as session:
        await session.live_turns[0].accepted
    (read,) = await bench.store.list_turns(
        TurnQuery(key=KEY, after_position=None, limit=9, newest_first=False, show_all=True)
    )
    bench.engine.release()
    await running

    async with bench.registry.use(KEY) as session:
        turn = await session.logs.as_it_stands(read)

    assert read.turn.state in (Turn.STATE_QUEUED, Turn.STATE_RUNNING)
    assert turn.state == Turn.STATE_COMPLETED
    assert turn == await bench.turn("t1")
