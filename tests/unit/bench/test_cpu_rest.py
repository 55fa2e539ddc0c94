"""When what a benchmark has started is at rest."""

import os
from dataclasses import dataclass

import pytest

from bench.cpu_peers.foreign_load import own_tree_s, wait_for_rest

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class BusyMachine:
    """Processes that have a core each until they come to rest, and a clock that sleeping moves."""

    busy_until_s: float
    num_busy: int = 1
    now_s: float = 0.0
    ticks_before: int = 0

    def clock_s(self) -> float:
        return self.now_s

    def sleep_s(self, length_s: float) -> None:
        self.now_s += length_s

    def used_s(self) -> float:
        used_s = self.num_busy * min(self.now_s, self.busy_until_s)
        return (self.ticks_before + int(used_s * _TICKS_PER_S + 1e-6)) / _TICKS_PER_S

    def wait(self) -> float:
        """Returns how long the wait took."""
        wait_for_rest(self.used_s, clock_s=self.clock_s, sleep_s=self.sleep_s)
        return self.now_s


def test_who_rests_already_is_waited_for_only_as_long_as_it_takes_to_see() -> None:
    assert BusyMachine(busy_until_s=0.0).wait() == pytest.approx(0.1)


@pytest.mark.parametrize("num_busy", [1, 16])
def test_threads_that_go_on_are_waited_for(num_busy: int) -> None:
    waited_s = BusyMachine(busy_until_s=1.0, num_busy=num_busy).wait()

    assert 1.0 <= waited_s <= 1.2 + 1e-6


def test_who_never_rests_is_waited_for_some_seconds() -> None:
    assert BusyMachine(busy_until_s=float("inf")).wait() == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize("ticks_before", [0, 33])
def test_a_tick_that_looking_itself_takes_is_rest(ticks_before: int) -> None:
    machine = BusyMachine(busy_until_s=1 / _TICKS_PER_S, ticks_before=ticks_before)

    assert machine.wait() == pytest.approx(0.1)


def test_time_of_this_process_counts() -> None:
    before_s = own_tree_s()

    while own_tree_s() == before_s:
        pass

    assert own_tree_s() > before_s
