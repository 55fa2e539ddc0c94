"""Small files in which a start keeps what it has measured, for later ones.

A file is whole at every moment, since processes may share it. What can't be kept or read is
measured again: that is logged, and no failure.
"""

import os
import tempfile
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

_log = structlog.get_logger(__name__)

_MAX_BYTES: Final = 1 << 20
_Measured = TypeVar("_Measured")


def read_measured(path: Path, kind: type[_Measured]) -> _Measured | None:
    """Returns what a file holds; None where there is none, or what it has is not of that kind."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        _log.warning("what was measured can't be read", file=str(path), cause=str(error))
        return None


def keep_measured(path: Path, measured: object) -> None:
    """Writes a file, and the directory that it lies in, in place of one that is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(measured))
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("what was measured can't be kept", file=str(path), cause=str(error))
