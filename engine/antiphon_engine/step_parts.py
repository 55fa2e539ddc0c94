"""The parts of a step's work on the host, for whoever measures them."""

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias


class StepPart(IntEnum):
    """What the engine's thread does from here on, until it says another."""

    RECEIVE = 0
    """Takes messages, admits requests; waits where nothing runs."""
    PLAN = 1
    """The core's plan."""
    PREPARE = 2
    """Gives slots to their new owners."""
    LAUNCH = 3
    """Copies, tables, the forward pass and the sampling: on CUDA launched, on the CPU done."""
    WAIT = 4
    """For the device, behind all that could be done beside it."""
    COMMIT = 5
    """The core's commit, and what grammars take note of."""
    PUBLISH = 6
    """Makes the step's news and sends them."""


PartWatch: TypeAlias = Callable[[StepPart], None]
"""Called by the engine's thread some seven times a step: it must cost next to nothing."""


def ignore_part(part: StepPart) -> None:
    """The watch of engines that aren't measured."""
