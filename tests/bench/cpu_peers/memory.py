"""The memory of processes: what is theirs alone, and their share of what several map."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.serve_command import children_of

_INTERVAL_S = 0.25


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
    """The largest of what was seen; it looks four times a second where it is asked to."""

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()

    @contextmanager
    def watching(self, process_id: int) -> Iterator[None]:
        """Looks at a process and all below it while the block runs."""
        self._done.clear()
        thread = threading.Thread(target=self._watch, args=(process_id,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def look(self, process_id: int) -> None:
        """Looks once."""
        self.bytes = max(self.bytes, pss_bytes(process_id))

    def _watch(self, process_id: int) -> None:
        self.look(process_id)
        while not self._done.wait(_INTERVAL_S):
            self.look(process_id)
        self.look(process_id)
