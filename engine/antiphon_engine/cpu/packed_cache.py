"""Packed weights kept on disk, so that a later start reads them as they are.

A file is the arrays, one behind the other, then what they are, as JSON, and where that begins. It
is written beside its place and renamed when it is on the disk, so that a file in its place is
whole; what is read is compared with checksums all the same. Nothing depends on a file: what is not
there, not whole or not the same is packed anew.
"""

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import BinaryIO, Final

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from antiphon_engine import _kernels

_log = structlog.get_logger(__name__)

_SUFFIX: Final = ".packed"
_PARTIAL: Final = ".partial-"
_END: Final = struct.Struct("<Q8s")
"""Where the description begins, and a word that tells the file's kind."""
_WORD: Final = b"antiphon"
_CHUNK_BYTES: Final = 4 << 20
_MAX_DESCRIPTION_BYTES: Final = 16 << 20
_MIN_BYTES: Final = 64 << 20
"""Less is packed as fast as it is read."""
_SPARE_SHARE: Final = 0.1
"""Of the disk, which a new file leaves free."""

Arrays = Sequence[NDArray[np.uint8]]


class _Description(msgspec.Struct, frozen=True):
    key: str
    sizes: list[int]
    """Of the arrays, in bytes."""
    checksums: list[int]
    """Of the chunks of each array, one array behind the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCache:
    """A directory of packed weights. Processes may share it."""

    directory: Path
    max_bytes: int
    """Of all files together; those that were used longest ago go first."""
    min_bytes: int = _MIN_BYTES
    """What is smaller isn't kept."""
    mark_used: Callable[[Path], None] = os.utime
    """Keeps a file from being the next to go. Raises OSError where the disk may only be read."""

    def read(self, key: str, arrays: Arrays, pool: Executor) -> bool:
        """Fills arrays with what was written under this key, and says whether it was all there.

        Where it says no, the arrays may hold anything.

        Args:
            key: What the weights are.
            arrays: Each one-dimensional and contiguous.
            pool: Reads and compares.
        """
        path = self._path(key)
        try:
            with path.open("rb") as file:
                found = _read_description(file)
                if found is None or found.key != key or found.sizes != _sizes(arrays):
                    return False
                chunks = list(_chunks(arrays))
                if len(chunks) != len(found.checksums):
                    return False
                checks = pool.map(
                    lambda place, chunk, checksum: _read_chunk(file, place, chunk) == checksum,
                    *zip(*chunks, strict=True),
                    found.checksums,
                )
                whole = all(list(checks))
            if whole:
                with suppress(OSError):
                    self.mark_used(path)
            else:
                _log.warning("packed weights on disk are damaged: packed anew", file=str(path))
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("packed weights can't be read", file=str(path), cause=str(error))
            return False
        return whole

    def write(self, key: str, arrays: Arrays) -> bool:
        """Keeps arrays under a key, and says whether it did. Takes seconds a gigabyte."""
        num_bytes = sum(_sizes(arrays))
        if not self.min_bytes <= num_bytes <= self.max_bytes:
            return False
        path = self._path(key)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            self._make_room(num_bytes, keep=path)
            disk = shutil.disk_usage(self.directory)
            if disk.free - num_bytes < disk.total * _SPARE_SHARE:
                _log.info("packed weights aren't kept: the disk is nearly full", file=str(path))
                return False
            _write_file(path, key, arrays)
        except OSError as error:
            _log.warning("packed weights can't be kept", file=str(path), cause=str(error))
            return False
        return True

    def _path(self, key: str) -> Path:
        return self.directory / f"{sha256(key.encode()).hexdigest()[:32]}{_SUFFIX}"

    def _make_room(self, num_bytes: int, *, keep: Path) -> None:
        others = (path for path in self.directory.glob(f"*{_SUFFIX}") if path != keep)
        facts = sorted(_files(others), key=lambda each: each[0].st_mtime)
        left = self.max_bytes - num_bytes - sum(fact.st_size for fact, _ in facts)
        for fact, path in facts:
            if left >= 0:
                return
            path.unlink(missing_ok=True)
            left += fact.st_size

    def _remove_abandoned(self) -> None:
        """Removes what processes left that ended while they wrote: nobody holds its lock."""
        for _, path in _files(self.directory.glob(f"{_PARTIAL}*")):
            with suppress(FileNotFoundError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                path.unlink(missing_ok=True)


def _files(paths: Iterator[Path]) -> Iterator[tuple[os.stat_result, Path]]:
    """Yields what are files. Others aren't the cache's; what is gone, another process removed."""
    for path in paths:
        with suppress(FileNotFoundError):
            facts = path.lstat()
            if S_ISREG(facts.st_mode):
                yield facts, path


def file_identity(files: Sequence[Path]) -> str:
    """Returns what tells files of weights from others: names, sizes, times, and samples of them.

    Raises:
        OSError: one can't be read.
    """
    digest = sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            digest.update(f"{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
            for place in range(0, facts.st_size, max(1, facts.st_size // _NUM_SAMPLES)):
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, place))
    return digest.hexdigest()


_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def library_identity() -> str:
    """Returns what tells this build of the kernels from others, which may pack in another way."""
    path = _kernels.__file__
    return sha256(Path(path).read_bytes()).hexdigest()


def _sizes(arrays: Arrays) -> list[int]:
    return [array.nbytes for array in arrays]


def _chunks(arrays: Arrays) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yields pieces of the arrays, and where in the file each one lies."""
    place = 0
    for array in arrays:
        for first in range(0, array.nbytes, _CHUNK_BYTES):
            chunk = array[first : first + _CHUNK_BYTES]
            yield place, chunk
            place += chunk.nbytes


def _read_chunk(file: BinaryIO, place: int, chunk: NDArray[np.uint8]) -> int | None:
    """Returns a chunk's checksum; None where the file ends before."""
    _transfer(lambda rest, at: os.preadv(file.fileno(), [rest], at), place, chunk)
    return _kernels.checksum(chunk)


def _transfer(step: Callable[[memoryview, int], int], place: int, chunk: NDArray[np.uint8]) -> None:
    """Reads or writes all of a chunk. Raises OSError where a file ends before."""
    rest = chunk.data
    while rest:
        num = step(rest, place)
        if num == 0:
            raise OSError("the file ends too early")
        rest, place = rest[num:], place + num


def _read_description(file: BinaryIO) -> _Description | None:
    """Returns what a file says of itself; None where it isn't a whole one."""
    size = os.fstat(file.fileno()).st_size
    if size < _END.size:
        return None
    begin, word = _END.unpack(os.pread(file.fileno(), _END.size, size - _END.size))
    num_bytes = size - _END.size - begin
    if word != _WORD or not 0 <= num_bytes <= _MAX_DESCRIPTION_BYTES:
        return None
    try:
        content = os.pread(file.fileno(), num_bytes, begin)
        description = msgspec.json.decode(content, type=_Description)
    except (msgspec.DecodeError, RecursionError):
        return None
    return description if sum(description.sizes) == begin else None


def _write_file(path: Path, key: str, arrays: Arrays) -> None:
    # No process's number: containers that share the directory may have the same ones.
    partial = path.with_name(f"{_PARTIAL}{token_hex(8)}")
    try:
        with partial.open("xb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            checksums = []
            end = 0
            for place, chunk in _chunks(arrays):
                _transfer(lambda rest, at: os.pwrite(file.fileno(), rest, at), place, chunk)
                checksums.append(_kernels.checksum(chunk))
                end = place + chunk.nbytes
            description = _Description(key=key, sizes=_sizes(arrays), checksums=checksums)
            tail = msgspec.json.encode(description) + _END.pack(end, _WORD)
            _transfer(
                lambda rest, at: os.pwrite(file.fileno(), rest, at),
                end,
                np.frombuffer(tail, np.uint8),
            )
            os.fsync(file.fileno())
            partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
