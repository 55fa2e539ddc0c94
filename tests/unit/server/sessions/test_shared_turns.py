"""Turns that sessions share in the store, and turns that a rewind took out of the history."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import AppendItems, Session, StartTurn, Turn

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.records import Fork, Rewound, SessionKey, TurnOrder
from antiphon_server.sessions.sqlite_store import SqliteStore
from antiphon_server.sessions.turn_request import Frame, read_start_turn
from support.session_bench import KEY, SessionBench, start_turn
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row, user

CHILD = key_of("child")


def open_store(path: Path) -> SqliteStore:
    return SqliteStore.open(path, synchronous="normal", owner="test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """A store whose session has three turns in its history."""
    opened = await filled_store(path)
    yield opened
    await opened.close()


async def filled_store(path: Path) -> SqliteStore:
    opened = open_store(path)
    await opened.create_session(new_session(session_row()))
    for position in (1, 2, 3):
        await opened.accept_turn(key_of(), turn_row(position))
        row = completed_row(position)
        row.turn.parent_turn = key_of().turn_name(f"t{position - 1}") if position > 1 else ""
        await opened.end_turn(row, session_row(version=position + 1))
    return opened


async def fork(store: SqliteStore, position: int, key: SessionKey = CHILD) -> None:
    new = replace(new_session(session_row(key)), fork=Fork(parent=key_of(), position=position))
    await store.create_session(new)


def count_contents(path: Path) -> int:
    with sqlite3.connect(path) as file:
        (count,) = file.execute("SELECT count(*) FROM contents").fetchone()
    file.close()
    return int(count)


async def names(store: SqliteStore, key: SessionKey) -> Sequence[str]:
    return [row.turn.name for row in await store.read_history(key)]


async def test_a_fork_has_the_shared_turns_under_its_own_name(store: SqliteStore):
    await fork(store, 2)

    shared = await store.read_history(CHILD)

    assert [row.turn.name for row in shared] == [CHILD.turn_name("t1"), CHILD.turn_name("t2")]
    assert [row.turn.parent_turn for row in shared] == ["", CHILD.turn_name("t1")]
    assert [row.tokens for row in shared] == [
        row.tokens for row in await store.read_history(key_of(), up_to=2)
    ]
    assert await store.read_last_position(CHILD) == 2


async def test_a_fork_keeps_no_content_twice(path: Path, store: SqliteStore):
    await fork(store, 3)

    assert count_contents(path) == 3


@pytest.mark.parametrize("first", [key_of(), CHILD])
async def test_contents_go_with_the_last_session_that_has_them(
    path: Path, store: SqliteStore, first: SessionKey
):
    await fork(store, 2)
    second = CHILD if first == key_of() else key_of()

    await store.delete_session(first)
    kept = await store.read_history(second)
    await store.delete_session(second)

    assert [row.turn_id for row in kept] == (
        ["t1", "t2"] if second == CHILD else ["t1", "t2", "t3"]
    )
    assert count_contents(path) == 0


async def test_contents_go_as_sessions_expire(path: Path, store: SqliteStore):
    await fork(store, 2)
    await store.update_session(session_row(expire_ns=5), None)

    assert await store.expire_session(key_of(), 5)

    assert count_contents(path) == 2


async def test_each_of_two_forks_goes_its_own_way_over_a_reopen(path: Path):
    store = await filled_store(path)
    await fork(store, 2)
    await store.accept_turn(CHILD, turn_row(3, key=CHILD))
    row = completed_row(3, key=CHILD)
    row.turn.output.text = "otherwise"
    await store.end_turn(row, session_row(CHILD, version=3))
    await store.close()

    again = open_store(path)
    texts = [
        [row.turn.output.text for row in await again.read_history(key)] for key in (key_of(), CHILD)
    ]
    await again.close()

    assert texts == [["", "", ""], ["", "", "otherwise"]]


async def test_a_fork_of_what_is_not_in_the_history_is_refused(path: Path, store: SqliteStore):
    await store.rewind_session(Rewound(row=session_row(version=9), position=1, receipt=None))

    with pytest.raises(AntiphonError) as refused:
        await fork(store, 2)

    assert refused.value.reason is ErrorReason.STORE_UNAVAILABLE
    assert await store.read_session(CHILD) is None


async def test_a_rewind_takes_later_turns_out_of_the_history_and_keeps_them(store: SqliteStore):
    await store.rewind_session(Rewound(row=session_row(version=9), position=1, receipt=None))

    later = await store.read_turn(key_of(), "t3")

    assert await names(store, key_of()) == [key_of().turn_name("t1")]
    assert later is not None
    assert later.turn.state == Turn.STATE_SUPERSEDED
    assert await store.read_last_position(key_of()) == 3
    row = await store.read_session(key_of())
    assert row is not None
    assert row.version == 9


async def test_a_rewind_leaves_a_fork_alone(store: SqliteStore):
    await fork(store, 3)

    await store.rewind_session(Rewound(row=session_row(version=9), position=0, receipt=None))

    assert await names(store, key_of()) == []
    assert len(await names(store, CHILD)) == 3


async def test_a_turn_may_take_the_place_of_those_before_it(store: SqliteStore):
    await store.accept_turn(key_of(), turn_row(4))

    await store.end_turn(completed_row(4), session_row(version=5), superseded_after=1)

    assert await names(store, key_of()) == [key_of().turn_name(id_) for id_ in ("t1", "t4")]


@pytest.mark.parametrize("generates", [True, False])
async def test_the_order_of_a_turn_is_kept_until_it_has_ended(path: Path, generates: bool):
    store = await filled_store(path)
    request = StartTurn(turn_id="t4", items=[user("hi")]) if generates else AppendItems()
    order = TurnOrder(request=request, accepted=Session(instructions="be"))
    await store.accept_turn(key_of(), replace(turn_row(4), generates=generates, order=order))
    await store.close()

    again = open_store(path)
    ((key, row),) = await again.list_unfinished()
    await again.end_turn(replace(completed_row(4), order=order), session_row(version=5))
    left = await again.list_unfinished()
    await again.close()

    assert (key, row.order) == (key_of(), order)
    assert left == []


async def test_a_turn_that_waits_is_kept_as_it_was_accepted(bench: SessionBench):
    bench.engine.hold()
    await bench.create(instructions="be", defaults={"stop": {"stop_strings": ["e"]}})
    start = start_turn("hi", "t1", max_tokens=3)
    async with bench.registry.use(KEY) as session:
        await session.start_turn(read_start_turn(start, Frame(path="turn")))
    ((_, row),) = await bench.store.list_unfinished()

    assert row.order is not None
    assert row.order.request == start
    assert row.order.accepted == Session(
        instructions="be",
        defaults={
            "sampling": {"seed": 7},
            "stop": {"stop_strings": ["e"], "max_output_tokens": 3},
        },
    )
