"""How much of the machine others used meanwhile, which says what a figure is worth."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cpu_peers.memory import process_tree

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REST_S = 0.1
_REST_LIMIT_S = 5.0


class ForeignLoad:
    """Shares of the machine's processor time that neither this process nor the measured one had."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    @property
    def last(self) -> float:
        """Of the last block."""
        return self.shares[-1]

    @contextmanager
    def counting(self, process_id: int) -> Iterator[None]:
        """Counts while the block runs, in which the engine of `process_id` is measured.

        Other engines count as others, whoever has started them.
        """
        begin_s, busy_s, own_s = time.monotonic(), _busy_s(), _own_s(process_id)
        yield
        wall_s = time.monotonic() - begin_s
        foreign_s = _busy_s() - busy_s - (_own_s(process_id) - own_s)
        self.shares.append(max(0.0, foreign_s) / (wall_s * (os.cpu_count() or 1)))


def own_tree_s() -> float:
    """Returns the processor time of this process and of all that it has started."""
    return _tree_s(os.getpid())


def wait_for_rest(
    used_s: Callable[[], float] = own_tree_s,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep_s: Callable[[float], None] = time.sleep,
) -> None:
    """Waits, at most some seconds, until all that this process has started does nothing.

    An engine may go on when its last token is told: threads that look out for more work do so for
    a while, which would be taken from whoever is measured next.

    Args:
        used_s: Tells the processor time that they have used, in ticks of the system's clock.
        clock_s: Tells the time.
        sleep_s: Waits.
    """
    deadline_s = clock_s() + _REST_LIMIT_S
    before_s = used_s()
    while clock_s() < deadline_s:
        sleep_s(_REST_S)
        now_s = used_s()
        # As much as looking takes itself, within what the clock tells apart.
        if now_s - before_s < 1.5 / _TICKS_PER_S:
            return
        before_s = now_s


def _busy_s() -> float:
    with Path("/proc/stat").open() as file:
        fields = list(map(int, file.readline().split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_S


def _own_s(process_id: int) -> float:
    return _ticks(os.getpid()) / _TICKS_PER_S + _tree_s(process_id)


def _tree_s(process_id: int) -> float:
    return sum(map(_ticks, process_tree(process_id))) / _TICKS_PER_S


def _ticks(process_id: int) -> int:
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0
    return int(fields[11]) + int(fields[12])
