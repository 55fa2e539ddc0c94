"""The memory of processes: what is theirs alone, and their share of what several map."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.serve_command import children_of

_INTERVAL_S = 0.5


def process_tree(process_id: int) -> Iterator[int]:
    """Yields a process and all below it."""
    yield process_id
    for child in children_of(process_id):
        yield from process_tree(child)


def pss_bytes(process_id: int) -> int:
    """Returns the proportional set size of a process and of all below it."""
    return sum(_pss_bytes(each) for each in process_tree(process_id))


def _pss_bytes(process_id: int) -> int:
    try:
        for line in Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has ended
        pass
    return 0


class PeakMemory:
    """The largest of what processes had that this one has started meanwhile."""

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()

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
        started = set(children_of(os.getpid())) - others
        self.bytes = max(self.bytes, sum(map(pss_bytes, started)))
