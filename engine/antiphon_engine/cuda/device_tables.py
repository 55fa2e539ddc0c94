"""What the device keeps of every slot between steps: its blocks and its last token.

Shape suffixes: S slots and one more, which is padding's; M blocks of the longest context;
D changes of the table; T tokens; R rows.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class DeviceTables:
    """Changed and read in the order of launches. All sizes are fixed, so it may be captured."""

    def __init__(self, device: torch.device, *, num_slots: int, max_blocks: int) -> None:
        self.scratch_slot = num_slots
        """The row that is padding's: its blocks are all scratch."""
        self._known = np.zeros((num_slots + 1, max_blocks), np.int32)
        self.blocks_SM = torch.zeros((num_slots + 1, max_blocks), dtype=torch.int32, device=device)
        self.last_tokens_S = torch.zeros(num_slots + 1, dtype=torch.int32, device=device)

    def settle(self, deltas: NDArray[np.int32]) -> None:
        """Makes a plan's changes [D, 3] (slot, block index, block id) independent of their order.

        Where one place changes twice in a step, both say in the end what it ends with: the device
        writes in whatever order.
        """
        if not len(deltas):
            return
        slots, indices = deltas[:, 0], deltas[:, 1]
        self._known[slots, indices] = deltas[:, 2]
        deltas[:, 2] = self._known[slots, indices]

    def change_blocks(self, deltas_D3: Tensor) -> None:
        """Launches settled changes."""
        slots_D, indices_D = deltas_D3[:, 0].long(), deltas_D3[:, 1].long()
        self.blocks_SM.index_put_((slots_D, indices_D), deltas_D3[:, 2])

    def known_ids(self, input_ids_T: Tensor, gather_slots_T: Tensor) -> Tensor:
        """Returns token ids, int32; those that the plan doesn't know are read from their slots."""
        last_tokens_T = self.last_tokens_S[gather_slots_T.clamp(min=0).long()]
        return torch.where(gather_slots_T >= 0, last_tokens_T, input_ids_T)

    def set_last_tokens(self, slots_R: Tensor, tokens_R: Tensor) -> None:
        """Keeps a token of each of some slots, int32; only the padding's occurs twice."""
        self.last_tokens_S.index_put_((slots_R.long(),), tokens_R)
