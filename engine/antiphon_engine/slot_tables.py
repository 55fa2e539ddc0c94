"""What the device keeps of every slot between steps: its blocks and its last token.

A slot is a running request's row in the tables.

Shape suffixes: S slots, M blocks of the longest context, T tokens of a step, R some of its rows.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.device import Device


class SlotTables(Protocol):
    """Changed and read in the order in which steps are launched; used by the engine's thread."""

    blocks_SM: Tensor
    """Block ids, int32; always the same memory."""

    def change_blocks(self, deltas: NDArray[np.int32]) -> None:
        """Takes a plan's `table_delta` [D, 3]: slot, block index, block id."""

    def known_ids(self, input_ids: NDArray[np.int32], gather_slots: NDArray[np.int32]) -> Tensor:
        """Returns token ids, [T] int32; those that the plan doesn't know are read from their slots.

        They hold until the next step asks.
        """

    def set_last_tokens(self, slots: NDArray[np.int32], tokens_R: Tensor) -> None:
        """Keeps a token, int32, of each of some slots [R], each of which occurs once."""


def make_slot_tables(
    device: Device, *, num_slots: int, max_blocks: int, max_step_tokens: int
) -> SlotTables:
    """Returns the tables of a device, all zeros."""
    if device.is_cuda:
        tables = DeviceTables(device.torch_device, num_slots=num_slots, max_blocks=max_blocks)
        return _UploadedTables(tables, device)
    return _HostTables(num_slots=num_slots, max_blocks=max_blocks, max_step_tokens=max_step_tokens)


class _HostTables:
    """In main memory, where steps change and read them as they are: nothing is allocated."""

    def __init__(self, *, num_slots: int, max_blocks: int, max_step_tokens: int) -> None:
        self._blocks = np.zeros((num_slots, max_blocks), np.int32)
        self.blocks_SM = torch.from_numpy(self._blocks)
        self._last_tokens = np.zeros(num_slots, np.int32)
        self._ids = np.zeros(max_step_tokens, np.int32)
        self._is_known = np.zeros(max_step_tokens, np.bool_)

    def change_blocks(self, deltas: NDArray[np.int32]) -> None:
        """See SlotTables."""
        self._blocks[deltas[:, 0], deltas[:, 1]] = deltas[:, 2]

    def known_ids(self, input_ids: NDArray[np.int32], gather_slots: NDArray[np.int32]) -> Tensor:
        """See SlotTables."""
        num_tokens = len(input_ids)
        ids, is_known = self._ids[:num_tokens], self._is_known[:num_tokens]
        np.take(self._last_tokens, gather_slots, out=ids, mode="clip")
        np.less(gather_slots, 0, out=is_known)
        np.copyto(ids, input_ids, where=is_known)
        return torch.from_numpy(ids)

    def set_last_tokens(self, slots: NDArray[np.int32], tokens_R: Tensor) -> None:
        """See SlotTables."""
        self._last_tokens[slots] = tokens_R.numpy()


class _UploadedTables:
    """On CUDA, each change of which is brought there."""

    def __init__(self, tables: DeviceTables, device: Device) -> None:
        self.blocks_SM = tables.blocks_SM
        self._tables = tables
        self._device = device

    def change_blocks(self, deltas: NDArray[np.int32]) -> None:
        """See SlotTables."""
        self._tables.settle(deltas)
        if len(deltas):
            self._tables.change_blocks(self._device.upload(deltas))

    def known_ids(self, input_ids: NDArray[np.int32], gather_slots: NDArray[np.int32]) -> Tensor:
        """See SlotTables."""
        upload = self._device.upload
        return self._tables.known_ids(upload(input_ids), upload(gather_slots))

    def set_last_tokens(self, slots: NDArray[np.int32], tokens_R: Tensor) -> None:
        """See SlotTables."""
        self._tables.set_last_tokens(self._device.upload(slots), tokens_R)
