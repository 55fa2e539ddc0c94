"""Converts GGUF files into checkpoint directories: once each, kept in the cache, never half there.

A directory in the cache is whole: it is filled under another name and renamed when its files are on
the disk. A lock keeps processes from converting the same file at the same time.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.progress import OnProgress

_LOCK_POLL_S = 0.1
_LOCK_LIMIT_S = 1800.0
_SILENCE_LIMIT_S = 600.0
"""A conversion that says nothing for so long is given up."""

Fill = Callable[[Path], None]
"""Fills an empty directory, or raises StartupError."""


def cached_directory(cache_dir: Path, name: str, fill: Fill, *, progress: OnProgress) -> Path:
    """Returns the directory `name` of the cache, which `fill` has filled now or earlier.

    What an earlier process left half done is removed.

    Raises:
        StartupError: the cache can't be written, or `fill` has failed.
    """
    target = cache_dir / name
    if target.is_dir():
        return target
    partial = cache_dir / f".partial-{name}"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _lock(cache_dir / f".{name}.lock", progress=progress):
            if target.is_dir():
                return target
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                fill(partial)
                _sync(partial)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise StartupError(f"can't write the model cache {cache_dir}: {error}") from error
    return target


def convert_gguf(
    source: Path, target: Path, *, tie: bool, progress: OnProgress, command: Sequence[str] = ()
) -> None:
    """Converts a GGUF file into the empty directory `target`, in a process of its own.

    The conversion needs torch, which must not come into this process.

    Args:
        source: The GGUF file.
        target: An empty directory.
        tie: Whether to use the output matrix for the embedding as well.
        progress: Is told the stages.
        command: The program; (): this package's.

    Raises:
        StartupError: the file can't be converted; says why.
    """
    program = command or (sys.executable, "-m", "antiphon_engine.checkpoint")
    arguments = [str(source), str(target), *(["--tie"] if tie else [])]
    with subprocess.Popen(
        [*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        try:
            assert child.stdout is not None
            failure = _follow(child.stdout, progress)
            status = child.wait(timeout=_SILENCE_LIMIT_S)
        finally:
            child.kill()
    if failure is not None or status != 0:
        raise StartupError(f"can't convert {source}: {failure or f'exit status {status}'}")


def _follow(output: IO[bytes], progress: OnProgress) -> str | None:
    """Passes progress on until the output ends. Returns the failure that was reported, if any.

    Lines that aren't the conversion's own come from libraries; the last ones explain a crash.
    """
    others: deque[str] = deque(maxlen=3)
    finished = False
    for line in _lines(output):
        try:
            news = json.loads(line)
        except ValueError:
            news = None
        if not isinstance(news, dict):
            others.append(line)
        elif "error" in news:
            return str(news["error"])
        elif "stage" in news:
            progress(str(news["stage"]), int(news["done"]), int(news["total"]))
            finished = news["stage"] == "converted"
    return None if finished else (" | ".join(others) or "it ended without a word")


def _lines(output: IO[bytes]) -> Iterator[str]:
    rest = b""
    while True:
        ready, _, _ = select.select([output], [], [], _SILENCE_LIMIT_S)
        if not ready:
            raise StartupError(f"no sign of life for {_SILENCE_LIMIT_S:.0f} s")
        chunk = os.read(output.fileno(), 1 << 16)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines if line)
        if not chunk:
            return


@contextmanager
def _lock(path: Path, *, progress: OnProgress) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_LIMIT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StartupError(
                        f"another process holds {path} for more than {_LOCK_LIMIT_S:.0f} s"
                    ) from None
                progress("wait for another process", 0, 0)
                time.sleep(_LOCK_POLL_S)
        yield


def _sync(directory: Path) -> None:
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
