"""How much of the machine others used meanwhile, which says what a figure is worth."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cpu_peers.memory import process_tree

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ForeignLoad:
    """Shares of the machine's processor time that others than this process and its children had."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    @property
    def last(self) -> float:
        """Of the last block."""
        return self.shares[-1]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts while the block runs."""
        begin_s, busy_s, own_s = time.monotonic(), _busy_s(), _own_s()
        yield
        wall_s = time.monotonic() - begin_s
        foreign_s = _busy_s() - busy_s - (_own_s() - own_s)
        self.shares.append(max(0.0, foreign_s) / (wall_s * (os.cpu_count() or 1)))


def _busy_s() -> float:
    with Path("/proc/stat").open() as file:
        fields = list(map(int, file.readline().split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_S


def _own_s() -> float:
    num_ticks = 0
    for process_id in process_tree(os.getpid()):
        try:
            fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        num_ticks += int(fields[11]) + int(fields[12])
    return num_ticks / _TICKS_PER_S
