"""A disk that is full in the middle of a write, as the system tells it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from antiphon_server.sessions.sqlite_store import SqliteStore
from support.session_rows import key_of

NUM_TURNS = 60
LIMIT_BYTES = 1 << 20

FILL = """
import asyncio, json, resource, signal, sys
from pathlib import Path
from antiphon_engine.api.errors import AntiphonError
from antiphon_server.sessions.sqlite_store import SqliteStore
from support.session_rows import completed_row, key_of, new_session, session_row, turn_row

async def fill(path, num_turns, limit_bytes):
    # As a full disk: a write beyond the limit fails, in the middle of a transaction.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = SqliteStore.open(path, synchronous="full", owner="test")
    await store.create_session(new_session(session_row()))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, most))
    kept, refused, causes, healthy = [], [], set(), []
    for position in range(1, num_turns + 1):
        row = turn_row(position)
        row.turn.input[0].message.text = "x" * 50_000
        try:
            await store.accept_turn(key_of(), row)
        except AntiphonError as error:
            refused.append(row.turn_id)
            causes.add(error.reason.value)
        else:
            kept.append(row.turn_id)
        healthy.append(store.health.writable)
        if len(refused) == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    told = dict(kept=kept, refused=refused, causes=sorted(causes), healthy=healthy)
    print(json.dumps(told), flush=True)
    import os
    os._exit(0)  # As a crash: nothing is put in order.

asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
"""


async def turn_ids_in(path: Path) -> list[str]:
    store = SqliteStore.open(path, synchronous="normal", owner="test")
    try:
        return [row.turn_id for key, row in await store.list_unfinished() if key == key_of()]
    finally:
        await store.close()


def test_what_was_kept_is_there_and_what_was_refused_is_not(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path), str(NUM_TURNS), str(LIMIT_BYTES)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])

    assert len(told["refused"]) == 5
    assert told["causes"] == ["STORE_UNAVAILABLE"]
    assert told["healthy"].count(False) == 5
    assert told["healthy"][-1]
    assert asyncio.run(turn_ids_in(path)) == told["kept"]
