"""The memory of processes: what is theirs alone, and their share of what several map."""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.serve_command import children_of

_INTERVAL_S = 0.5


def process_tree(process_id: int) -> Iterator[int]:
    """Yields a process and all below it."""
    yield process_id
    for child in children_of(process_id):
        yield from process_tree(child)


def _pss_bytes(process_id: int) -> int:
    try:
        for line in Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has ended
        pass
    return 0


def role_of(command: Sequence[str]) -> str:
    """Returns what a process is for, by its command: its Python module's last name, or program."""
    if not command:
        return "ended"
    program = Path(command[0]).name
    if not program.startswith("python"):
        return program
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1].removesuffix(".main").rpartition(".")[2]
    return next((Path(word).stem for word in command if word.endswith(".py")), program)


def _command_of(process_id: int) -> list[str]:
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return []
    return words.rstrip("\0").split("\0")


class PeakMemory:
    """The largest of what processes had that this one has started meanwhile."""

    def __init__(self) -> None:
        self.shares: dict[str, int] = {}
        """Bytes at the peak, by what processes are for."""
        self._done = threading.Event()

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(self.shares.values())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks, twice a second and at the end, at what is started while the block runs."""
        others = set(children_of(os.getpid()))
        thread = threading.Thread(target=self._watch, args=(others,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _watch(self, others: set[int]) -> None:
        while not self._done.wait(_INTERVAL_S):
            self._look(others)
        self._look(others)

    def _look(self, others: set[int]) -> None:
        shares: Counter[str] = Counter()
        for started in set(children_of(os.getpid())) - others:
            for process_id in process_tree(started):
                shares[role_of(_command_of(process_id))] += _pss_bytes(process_id)
        if shares.total() > self.bytes:
            self.shares = dict(shares)
