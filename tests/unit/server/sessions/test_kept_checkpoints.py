"""What the store keeps of turns that have not ended, and for how long."""

import asyncio
import sqlite3
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.session_pb2 import Turn

from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.messages import TokenLogprobs
from antiphon_server.sessions.checkpoint_batches import CheckpointBatches
from antiphon_server.sessions.records import Checkpoint, TurnTokens
from antiphon_server.sessions.sqlite_checkpoints import TurnCheckpoint
from antiphon_server.sessions.sqlite_store import SqliteStore
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row

KEY = key_of()
PROMPT = TurnTokens(head_ids=array("i", [1, 2]), head_digest=b"d", added_ids=array("i", [3]))


def entry(token_id: int) -> TokenLogprobs:
    ids = array("i", [token_id]).tobytes()
    return TokenLogprobs(
        request_id=1, output_index=0, chosen=-0.1, top_ids=ids, top_logprobs=b"\0\0\0\0"
    )


def part(*output_ids: int, before: int = 0, num_attempts: int = 1) -> Checkpoint:
    return Checkpoint(
        num_attempts=num_attempts,
        tokens=TurnTokens(
            head_ids=PROMPT.head_ids,
            head_digest=PROMPT.head_digest,
            added_ids=PROMPT.added_ids,
            output_ids=array("i", output_ids),
        ),
        logprobs=[entry(token_id) for token_id in output_ids],
        num_kept_before=before,
    )


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "s.db", synchronous="normal", owner="test")
    await opened.create_session(new_session(session_row()))
    await opened.accept_turn(KEY, turn_row(1))
    yield opened
    await opened.close()


async def test_parts_add_up_to_what_was_generated(store: SqliteStore):
    await store.keep_checkpoint(KEY, 1, part())
    await store.keep_checkpoint(KEY, 1, part(5, 6))
    await store.keep_checkpoint(KEY, 1, part(7, before=2, num_attempts=3))

    assert await store.read_checkpoint(KEY, 1) == part(5, 6, 7, num_attempts=3)
    assert await store.read_checkpoint(KEY, 2) is None


async def test_part_that_came_again_is_there_once(store: SqliteStore):
    for _ in range(2):
        await store.keep_checkpoint(KEY, 1, part(5, 6))

    assert await store.read_checkpoint(KEY, 1) == part(5, 6)


async def test_what_stands_behind_a_gap_is_not_used(store: SqliteStore):
    await store.keep_checkpoint(KEY, 1, part(5, 6))
    await store.keep_checkpoint(KEY, 1, part(9, before=3))

    assert await store.read_checkpoint(KEY, 1) == part(5, 6)


async def test_end_of_a_turn_takes_its_checkpoint_along(store: SqliteStore):
    await store.keep_checkpoint(KEY, 1, part(5, 6))
    await store.end_turn(completed_row(1), session_row(version=2))
    await store.keep_checkpoint(KEY, 1, part(7, before=2))

    assert await store.read_checkpoint(KEY, 1) is None


async def test_deleted_session_takes_its_checkpoints_along(store: SqliteStore, tmp_path: Path):
    await store.keep_checkpoint(KEY, 1, part(5, 6))
    await store.delete_session(KEY)
    await store.keep_checkpoint(KEY, 1, part(7, before=2))

    with sqlite3.connect(tmp_path / "s.db") as file:
        for table in ("checkpoints", "checkpoint_parts"):
            assert file.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    file.close()


async def test_turn_that_is_not_there_keeps_nothing(store: SqliteStore):
    await store.keep_checkpoint(KEY, 2, part(5))
    await store.keep_checkpoint(key_of("b"), 1, part(5))
    await store.accept_turn(KEY, turn_row(3, state=Turn.STATE_FAILED))
    await store.keep_checkpoint(KEY, 3, part(5))

    assert await store.read_checkpoint(KEY, 2) is None
    assert await store.read_checkpoint(key_of("b"), 1) is None
    assert await store.read_checkpoint(KEY, 3) is None


async def test_server_that_was_given_up_keeps_nothing(store: SqliteStore):
    await store.keep_checkpoint(KEY, 1, part(5, 6))
    await store._writer.run(lambda file: file.execute("UPDATE sessions SET epoch = 99"))
    await store.keep_checkpoint(KEY, 1, part(7, before=2))

    assert await store.read_checkpoint(KEY, 1) == part(5, 6)


async def test_damaged_checkpoint_is_an_error_of_the_store(store: SqliteStore):
    await store.keep_checkpoint(KEY, 1, part(5, 6))
    await store._writer.run(
        lambda file: file.execute("UPDATE checkpoint_parts SET logprobs = x'01'")
    )

    with pytest.raises(AntiphonError):
        await store.read_checkpoint(KEY, 1)


async def test_checkpoints_that_come_together_are_kept_each_for_its_turn(store: SqliteStore):
    keys = [KEY, *(key_of(f"s{index}") for index in range(80))]
    for key in keys[1:]:
        await store.create_session(new_session(session_row(key)))
        await store.accept_turn(key, turn_row(1))
    ids = {key: (index, index + 1) for index, key in enumerate(keys)}

    kept = await asyncio.gather(*(store.keep_checkpoint(key, 1, part(*ids[key])) for key in keys))

    assert all(kept)
    assert [await store.read_checkpoint(key, 1) for key in keys] == [
        part(*ids[key]) for key in keys
    ]


@pytest.mark.parametrize("ids", [(), (5, 6)])
async def test_turn_that_is_not_there_keeps_no_other_from_being_kept(
    store: SqliteStore, ids: tuple[int, ...]
):
    turns = [(KEY, 1), (KEY, 2), (key_of("b"), 1)]

    kept = await asyncio.gather(*(store.keep_checkpoint(*turn, part(*ids)) for turn in turns))

    assert kept == [True, False, False]
    assert await store.read_checkpoint(KEY, 1) == part(*ids)


async def test_checkpoint_that_can_not_be_written_keeps_no_other_from_being_kept(
    store: SqliteStore,
):
    await store.accept_turn(KEY, turn_row(2))
    broken = replace(part(5), tokens=replace(PROMPT, head_digest=None))

    outcomes = await asyncio.gather(
        store.keep_checkpoint(KEY, 1, broken),
        store.keep_checkpoint(KEY, 2, part(5, 6)),
        return_exceptions=True,
    )

    assert isinstance(outcomes[0], Exception)
    assert outcomes[1] is True
    assert await store.read_checkpoint(KEY, 2) == part(5, 6)


async def test_checkpoint_that_nobody_waits_for_any_more_is_not_written(store: SqliteStore):
    keeping = asyncio.create_task(store.keep_checkpoint(KEY, 1, part(5, 6)))
    other = asyncio.create_task(store.keep_checkpoint(KEY, 2, part()))
    await asyncio.sleep(0)

    keeping.cancel()
    await asyncio.wait({keeping, other})

    assert await store.read_checkpoint(KEY, 1) is None


class SlowWriter:
    """One whose writes end when they are let."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def run(self, operation: object) -> list[bool]:
        del operation
        await self.may_end.wait()
        return [True]


async def test_closing_waits_for_checkpoints_that_are_to_be_kept():
    writer = SlowWriter()
    batches = CheckpointBatches(writer, epoch=1)
    checkpoint = TurnCheckpoint(key=KEY, position=1, checkpoint=part(5))
    keeping = asyncio.create_task(batches.keep(checkpoint))
    await asyncio.sleep(0)

    closing = asyncio.create_task(batches.close())
    for _ in range(10):
        await asyncio.sleep(0)
    closed_before = closing.done()
    writer.may_end.set()
    async with asyncio.timeout(10):
        await closing

    assert not closed_before
    assert await keeping


class BrokenWriter:
    """One with a fault of its own."""

    async def run(self, operation: object) -> None:
        del operation
        raise KeyError("a fault")


async def test_fault_of_the_writer_is_told_to_all_who_wait():
    batches = CheckpointBatches(BrokenWriter(), epoch=1)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    checkpoints = [
        TurnCheckpoint(key=KEY, position=position, checkpoint=part(5)) for position in (1, 2)
    ]

    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(
            *(batches.keep(each) for each in checkpoints), return_exceptions=True
        )

    assert [type(outcome) for outcome in outcomes] == [KeyError, KeyError]
