"""How the two sides of a pair stand in time."""

from collections.abc import Callable

from bench.cpu_peers.path_cost import around


class DriftingMachine:
    """Work takes a second longer each time."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def work(self, name: str) -> Callable[[], float]:
        def run() -> float:
            self.order.append(name)
            return float(len(self.order))

        return run


def test_a_pace_that_changes_evenly_gives_both_sides_of_a_pair_the_same() -> None:
    machine = DriftingMachine()

    outer, inner = around(machine.work("served"), machine.work("alone"))

    assert machine.order == ["served", "alone", "alone", "served"]
    assert outer == inner
