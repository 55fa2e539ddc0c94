"""A planned step: its rows and copies as read from the arrays, until it is committed."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _native
from support.core_values import Buffers, History

Sampler = Callable[[History, float], int]
"""Draws the token behind a history, given the row's uniform number."""

_WRITTEN_LATER = ("tokens", "num_tokens", "result")


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """One row of a plan."""

    index: int
    handle: int
    epoch: int
    slot: int
    flags: int
    start: int
    end: int
    first_token: int
    """Where its tokens begin in the arrays."""
    history: History
    """Of its request in its epoch; grows as steps are executed."""

    @property
    def samples(self) -> bool:
        return bool(self.flags & _native.FLAG_SAMPLE)

    @property
    def is_new(self) -> bool:
        """Whether it is the first in its slot."""
        return bool(self.flags & (_native.FLAG_FIRST | _native.FLAG_RESUMED))

    @property
    def token_slice(self) -> slice:
        return slice(self.first_token, self.first_token + self.end - self.start)


@dataclass(frozen=True)
class Copy:
    """One row of copy_ops."""

    kind: int
    source_tier: int
    source: int
    destination: int
    num_tokens: int

    @property
    def destination_tier(self) -> int:
        offloads = self.kind == _native.COPY_OFFLOAD
        return _native.TIER_HOST if offloads else _native.TIER_DEVICE


@dataclass(kw_only=True)
class PlannedStep:
    """What was planned, where it stands, and which blocks it touches."""

    step_id: int
    buffers: Buffers
    rows: list[PlannedRow]
    copies: list[Copy]
    executed: bool = False
    late: set[int] = field(default_factory=set)
    """Rows that were to bring a token and bring none."""
    device_blocks: dict[int, set[int]] = field(default_factory=dict)
    """Device blocks that rows read or write, with the handles that do."""
    image: dict[str, NDArray[np.generic]] = field(default_factory=dict)

    def keep_image(self) -> None:
        """Remembers the arrays as planned."""
        self.image = {
            name: array.copy() for name, array in self.buffers.items() if name not in _WRITTEN_LATER
        }

    def check_image(self) -> None:
        """A device may read the arrays until it has carried the step out."""
        for name, array in self.image.items():
            assert np.array_equal(array, self.buffers[name], equal_nan=True), (
                f"I11: {name} of a step in flight is overwritten"
            )

    def blocks_in_use(self, tier: int) -> set[int]:
        """Blocks of a tier that its rows or copies read or write."""
        sources = {copy.source for copy in self.copies if copy.source_tier == tier}
        ends = {copy.destination for copy in self.copies if copy.destination_tier == tier}
        rows = set(self.device_blocks) if tier == _native.TIER_DEVICE else set()
        return sources | ends | rows

    def offloaded_to(self) -> set[int]:
        """Host blocks that its copies write."""
        return {copy.destination for copy in self.copies if copy.kind == _native.COPY_OFFLOAD}


def planned_handles(buffers: Buffers) -> list[int]:
    num_rows = int(buffers["header"][_native.HEADER_NUM_ROWS])
    return [int(handle) for handle in buffers["handle"][:num_rows]]


def planned_copies(buffers: Buffers) -> list[Copy]:
    num_copies = int(buffers["header"][_native.HEADER_NUM_COPIES])
    return [Copy(*(int(value) for value in op)) for op in buffers["copy_ops"][:num_copies]]
