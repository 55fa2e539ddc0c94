"""What the device keeps of every slot between steps: its blocks and its last token.

A slot is a running request's row in the tables.

Shape suffixes: R rows of a step, T its tokens, M blocks of the longest context.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine.device import Device


class SlotTables:
    """Changed and read in the order in which steps are launched; used by the engine's thread."""

    def __init__(self, device: Device, *, num_slots: int, max_blocks: int) -> None:
        self._device = device
        # The host's copy gives the table its changes: where one place changes twice in a step, both
        # write what it ends with, in whatever order the device writes.
        self._blocks = np.zeros((num_slots, max_blocks), np.int64)
        self._blocks_SM = device.upload(self._blocks)
        self._last_tokens_S = torch.zeros(num_slots, dtype=torch.int64, device=device.torch_device)

    def change_blocks(self, deltas: NDArray[np.int32]) -> None:
        """Takes a plan's `table_delta` [D, 3]: slot, block index, block id."""
        if not len(deltas):
            return
        slots, indices = deltas[:, 0].astype(np.int64), deltas[:, 1].astype(np.int64)
        self._blocks[slots, indices] = deltas[:, 2]
        if self._device.is_cuda:
            places = (self._device.upload(slots), self._device.upload(indices))
            self._blocks_SM.index_put_(places, self._device.upload(self._blocks[slots, indices]))

    def blocks(self, slots_R: Tensor, num_blocks: int) -> Tensor:
        """Returns the first blocks of some slots, [R, num_blocks] int64."""
        return self._blocks_SM[:, :num_blocks].index_select(0, slots_R)

    def known_ids(self, input_ids_T: Tensor, gather_slots_T: Tensor) -> Tensor:
        """Returns token ids, int64; those that the plan doesn't know are read from their slots."""
        last_tokens_T = self._last_tokens_S[gather_slots_T.clamp(min=0).long()]
        return torch.where(gather_slots_T >= 0, last_tokens_T, input_ids_T.long())

    def set_last_tokens(self, slots_R: Tensor, tokens_R: Tensor) -> None:
        """Keeps a token of each of some slots, each of which occurs once."""
        self._last_tokens_S[slots_R] = tokens_R.long()
