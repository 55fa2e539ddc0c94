"""The arrays of a step of single tokens, packed as tightly as its bucket allows.

Such steps are the many and the short: what they bring to the device is a few integers a row, in one
piece whose layout depends on the bucket alone.

Shape suffixes: B rows of a bucket, D changes of the block table.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.cuda.buckets import DECODE_DELTAS_PER_ROW
from antiphon_engine.step_executor import StepBuffers

_ALIGNMENT = 4
"""In integers: arrays begin where wide loads may."""
_NUM_FIELDS = 4
_HEAD = _ALIGNMENT
"""Integers in front of the fields, of which the first is the number of changes."""
_COPIED_DELTAS = 16
"""Changes are copied in multiples of so many: few sizes, whose views are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeArrays:
    """Views of a bucket's arrays on the device, all int32."""

    slots_B: Tensor
    positions_B: Tensor
    gather_slots_B: Tensor
    input_ids_B: Tensor
    deltas_D3: Tensor
    num_deltas_1: Tensor
    """How many of the changes count; what is behind them is from steps before."""


def packed_size(bucket: int) -> int:
    """Returns how many integers a bucket's arrays are."""
    return _deltas_start(bucket) + 3 * DECODE_DELTAS_PER_ROW * bucket


class DecodeSlab:
    """The device's piece; a step's overwrites that of the one before, in the order of launches."""

    def __init__(self, device: torch.device, *, max_rows: int) -> None:
        self._memory = torch.zeros(packed_size(max_rows), dtype=torch.int32, device=device)
        self._beginnings: dict[int, Tensor] = {}

    def arrays(self, bucket: int) -> DecodeArrays:
        """Returns where a bucket's arrays are found."""
        start = _deltas_start(bucket)
        fields = self._memory[_HEAD:start].view(_NUM_FIELDS, _stride(bucket))[:, :bucket]
        deltas = self._memory[start : packed_size(bucket)]
        return DecodeArrays(
            slots_B=fields[0],
            positions_B=fields[1],
            gather_slots_B=fields[2],
            input_ids_B=fields[3],
            deltas_D3=deltas.view(-1, 3),
            num_deltas_1=self._memory[:1],
        )

    def take(self, staged: "DecodeStage", size: int) -> None:
        """Launches the copy of a step, of so many integers."""
        if (beginning := self._beginnings.get(size)) is None:
            beginning = self._beginnings[size] = self._memory[:size]
        beginning.copy_(staged.beginning(size), non_blocking=True)


class DecodeStage:
    """A set's piece on the host."""

    def __init__(self, *, max_rows: int, pinned: bool) -> None:
        self.memory = torch.zeros(packed_size(max_rows), dtype=torch.int32, pin_memory=pinned)
        self._array: NDArray[np.int32] = self.memory.numpy()
        self._beginnings: dict[int, Tensor] = {}

    def beginning(self, size: int) -> Tensor:
        """Returns its first so many integers."""
        if (beginning := self._beginnings.get(size)) is None:
            beginning = self._beginnings[size] = self.memory[:size]
        return beginning

    def pack(self, step: StepBuffers, num_rows: int, bucket: int, *, scratch_slot: int) -> int:
        """Copies a planned step in, with its padding; returns how many integers it takes.

        Padding rows compute what nobody reads: at position -1, for the scratch slot.

        Args:
            step: With changes of the table that a captured step has room for.
            num_rows: Its rows, each of one token.
            bucket: Holds them.
            scratch_slot: The slot that is padding's.
        """
        start = _deltas_start(bucket)
        fields = self._array[_HEAD:start].reshape(_NUM_FIELDS, _stride(bucket))
        fields[0, :num_rows] = step["slot"][:num_rows]
        fields[1, :num_rows] = step["positions"][:num_rows]
        fields[2, :num_rows] = step["gather_slot"][:num_rows]
        fields[3, :num_rows] = step["input_ids"][:num_rows]
        if num_rows < bucket:
            fields[0, num_rows:bucket] = scratch_slot
            fields[1:3, num_rows:bucket] = -1
            fields[3, num_rows:bucket] = 0
        num_deltas = int(step["header"][_native.HEADER_NUM_TABLE_DELTAS])
        self._array[0] = num_deltas
        if not num_deltas:
            return start
        end = start + 3 * num_deltas
        self._array[start:end].reshape(-1, 3)[:] = step["table_delta"][:num_deltas]
        num_copied = -(-num_deltas // _COPIED_DELTAS) * _COPIED_DELTAS
        return min(start + 3 * num_copied, packed_size(bucket))


def _deltas_start(bucket: int) -> int:
    return _HEAD + _NUM_FIELDS * _stride(bucket)


def _stride(bucket: int) -> int:
    return -(-bucket // _ALIGNMENT) * _ALIGNMENT
