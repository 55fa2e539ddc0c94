"""Copies of a session store, made while a server may use it."""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from antiphon_engine.api.errors import StartupError
from antiphon_server.sessions.sqlite_schema import check_is_store

_INSTRUCTIONS_PER_LOOK: Final = 1000
_WAIT_S: Final = 30.0

OnProgress = Callable[[int, int], None]
"""Is told how many bytes are copied, and about how many there are."""


def copy_store(source: Path, destination: Path, *, on_progress: OnProgress) -> int:
    """Copies a store as it stands at one moment, checks the copy, and returns its size in bytes.

    Turns that are accepted meanwhile are not held up, and are not in the copy. The destination is
    whole or not there.

    Raises:
        StartupError: there is no store, the destination is there already, or it can't be written.
    """
    if os.path.lexists(destination):
        raise StartupError(f"{destination} is there already; name a file that is not")
    if not source.is_file():
        raise StartupError(f"there is no session store {source}")
    draft = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}")
    try:
        _write_copy(source, draft, on_progress)
        _check_copy(draft)
        os.link(draft, destination)  # Unlike a rename it replaces nothing.
    except FileExistsError:
        raise StartupError(f"{destination} is there already; name a file that is not") from None
    except (OSError, sqlite3.Error) as error:
        raise StartupError(f"{source} can't be copied to {destination}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return destination.stat().st_size


def _write_copy(source: Path, draft: Path, on_progress: OnProgress) -> None:
    with _reading(source) as file:
        check_is_store(file, source)
        (num_pages,) = file.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = file.execute("PRAGMA page_size").fetchone()

        def look() -> int:
            with contextlib.suppress(OSError):
                on_progress(draft.stat().st_size, num_pages * page_bytes)
            return 0

        # Made for its owner alone before anything is in it.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        file.set_progress_handler(look, _INSTRUCTIONS_PER_LOOK)
        # One read of one moment: a copy by pages would begin anew at each write of the server.
        file.execute("VACUUM INTO ?", (str(draft),))
    with draft.open("r+b") as written:
        os.fsync(written.fileno())


def _check_copy(draft: Path) -> None:
    with _reading(draft) as copy:
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {verdict}")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_S, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
