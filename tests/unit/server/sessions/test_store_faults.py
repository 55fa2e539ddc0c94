"""A store that can't be written, or read: refused clearly, nothing half-written, and told."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import CreateSessionRequest
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, StopConditions
from grpc_health.v1 import health_pb2

from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_server.sessions.records import SessionRow, TurnRow
from antiphon_server.sessions.sqlite_store import SqliteStore
from support.server import RunningServer, details_of, running_server
from support.session_bench import eventually
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row

LIMIT_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SESSIONS, INFERENCE = "antiphon.v1.SessionService", "antiphon.v1.InferenceService"


def open_store(path: Path, *, max_bytes: int = 0) -> SqliteStore:
    return SqliteStore.open(path, synchronous="normal", owner="test", max_bytes=max_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = open_store(path)
    await opened.create_session(new_session(session_row()))
    assert await opened.count_sessions() == 1
    yield opened
    await opened.close()


def large_turn() -> TurnRow:
    row = turn_row(1)
    row.turn.input[0].message.text = "x" * (400 << 10)
    return row


async def run(store: SqliteStore, pragma: str) -> None:
    """Sets up the writer's own connection."""
    await store._writer.run(lambda file: file.execute(f"PRAGMA {pragma}"))


async def refused(store: SqliteStore, position: int = 1) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        await store.accept_turn(key_of(), turn_row(position))
    assert caught.value.reason is ErrorReason.STORE_UNAVAILABLE
    assert caught.value.retry_delay_s is not None
    assert await store.read_turn(key_of(), f"t{position}") is None
    return caught.value


async def until_writable(store: SqliteStore) -> None:
    """At most until the test's time is over, and without a write of anyone's."""
    await eventually(lambda: store.health.writable)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the file as another process would."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


async def test_a_file_that_may_not_grow_refuses_until_there_is_room(path: Path):
    store = open_store(path, max_bytes=200 << 10)
    await store.create_session(new_session(session_row()))
    large = large_turn()

    with pytest.raises(AntiphonError, match="full") as caught:
        await store.accept_turn(key_of(), large)
    assert caught.value.reason is ErrorReason.STORE_UNAVAILABLE
    assert await store.read_turn(key_of(), "t1") is None
    assert not store.health.writable
    await run(store, "max_page_count = 10000")
    await store.accept_turn(key_of(), large)

    assert store.health.writable
    await store.close()


async def test_a_read_only_file_refuses_and_its_end_is_seen_without_traffic(store: SqliteStore):
    await run(store, "query_only = ON")
    assert "readonly" in str(await refused(store))
    assert not store.health.writable
    store._writer._connection.execute("PRAGMA query_only = OFF")

    await until_writable(store)

    await store.accept_turn(key_of(), turn_row(1))


async def test_a_locked_file_refuses_all_that_wait_at_once_and_goes_on(
    store: SqliteStore, path: Path
):
    await run(store, "busy_timeout = 50")
    with locked(path):
        errors = await asyncio.gather(*(refused(store, position) for position in range(1, 200)))
    await until_writable(store)
    await store.accept_turn(key_of(), turn_row(1))

    assert {str(error) for error in errors} == {str(errors[0])}
    assert "locked" in str(errors[0])


async def test_a_file_that_was_deleted_takes_no_more_writes(store: SqliteStore, path: Path):
    kept = path.with_name("moved.db")
    os.rename(path, kept)
    assert "was moved, deleted or replaced" in str(await refused(store))
    assert not store.health.writable
    os.rename(kept, path)

    await until_writable(store)

    await store.accept_turn(key_of(), turn_row(1))


async def test_a_write_at_fault_by_itself_is_no_fault_of_the_file(store: SqliteStore):
    await store.accept_turn(key_of(), turn_row(1))
    with pytest.raises(AntiphonError):
        await store.accept_turn(key_of(), turn_row(1))

    assert store.health.writable


def damage(path: Path) -> None:
    """Overwrites half of the file's pages, but for those at its beginning."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3 // 4096 * 4096)
        file.write(b"\x5a" * (size // 2 // 4096 * 4096))


async def test_a_refusal_is_no_sign_that_the_file_can_be_written(store: SqliteStore):
    await run(store, "max_page_count = 1")
    with pytest.raises(AntiphonError, match="full"):
        await store.accept_turn(key_of(), large_turn())

    with pytest.raises(AntiphonError, match="taken"):
        await store.create_session(new_session(session_row()))

    assert not store.health.writable


async def test_damaged_pages_fail_what_needs_them_and_nothing_else(path: Path):
    store = open_store(path)
    keys = [key_of(f"s{number}") for number in range(40)]
    for key in keys:
        row = session_row(key)
        row.session.instructions = key.session_id * 5000
        await store.create_session(new_session(row))
        await store.accept_turn(key, turn_row(1, key=key))
        await store.end_turn(completed_row(1, key=key), row)
    await store.close()
    damage(path)

    store = open_store(path)
    outcomes = await asyncio.gather(*map(store.read_session, keys), return_exceptions=True)
    await store.close()

    read = [outcome for outcome in outcomes if isinstance(outcome, SessionRow)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, AntiphonError)]
    assert min(len(read), len(failed)) > 0
    assert len(read) + len(failed) == len(keys)
    assert {error.reason for error in failed} == {ErrorReason.STORE_UNAVAILABLE}


@pytest.mark.parametrize("content", [b"no database at all" * 500, b"SQLite format 3\0" + b"x" * 99])
def test_a_file_that_is_no_store_is_told_in_one_line(path: Path, content: bytes):
    path.write_bytes(content)

    with pytest.raises(StartupError, match=r"sessions\.db can't be used") as caught:
        open_store(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


OPEN_AS_SOMEBODY = """
import os
import sys
from pathlib import Path
from antiphon_engine.api.errors import StartupError
from antiphon_server.sessions.records import SessionRow, TurnRow
from antiphon_server.sessions.sqlite_store import SqliteStore
if os.geteuid() == 0:
    os.setuid(65534)
try:
    SqliteStore.open(Path(sys.argv[1]), synchronous="normal", owner="test")
except StartupError as error:
    print(error)
"""


def test_a_store_without_the_right_to_write_it_is_told_at_the_start():
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        path = folder / "sessions.db"
        asyncio.run(open_store(path).close())
        for each in folder.iterdir():
            each.chmod(0o444)
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AS_SOMEBODY, str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        folder.chmod(0o755)

    assert "sessions.db can't be used as a session store" in done.stdout
    assert "denied" in done.stdout


async def health_of(server: RunningServer, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return (await server.health.Check(request, timeout=LIMIT_S)).status


async def test_health_tells_of_a_store_that_can_not_be_written_and_the_rest_is_served(
    tmp_path: Path,
):
    async with running_server(tmp_path) as server:
        assert server.server._store is not None
        await run(server.server._store, "busy_timeout = 50")
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service=SESSIONS))
        told = [(await watch.read()).status]
        with locked(tmp_path / "sessions.db"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)
            told.append((await watch.read()).status)
            health = {name: await health_of(server, name) for name in ("", SESSIONS, INFERENCE)}
            answer = await server.inference.Generate(
                GenerateRequest(
                    prompt=Prompt(text="hi"),
                    config=GenerationConfig(stop=StopConditions(max_output_tokens=2)),
                ),
                timeout=LIMIT_S,
            )
        told.append((await watch.read()).status)
        watch.cancel()
        session = await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    details = details_of(caught.value)
    assert details["ErrorInfo"].reason == "STORE_UNAVAILABLE"
    assert details["RetryInfo"].retry_delay.ToNanoseconds() > 0
    assert told == [SERVING, NOT_SERVING, SERVING]
    assert health == {"": NOT_SERVING, SESSIONS: NOT_SERVING, INFERENCE: SERVING}
    assert answer.outputs[0].finish_reason
    assert session.name
