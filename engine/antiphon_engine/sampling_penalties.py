"""Penalties on tokens that occurred: which did, kept per slot, and what that does to logits.

Shapes: V the vocabulary, R rows of a step that have penalties.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Returns whether `params` penalise anything."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


class Penalties:
    """What occurred in each slot's request, and the penalties it asked for.

    Repetition sees prompt and output, presence and frequency the output alone. The prompt is
    counted from its token ids when the slot gets its owner, so it does not matter how much of it
    was cached. Memory is taken for slots that have penalties only.
    """

    def __init__(self, *, num_slots: int, vocabulary_size: int) -> None:
        self._repetition = np.ones(num_slots, np.float32)
        self._presence = np.zeros(num_slots, np.float32)
        self._frequency = np.zeros(num_slots, np.float32)
        self._seen = SlotRows(num_slots, vocabulary_size, torch.bool)
        self._counts = SlotRows(num_slots, vocabulary_size, torch.float32)

    def write(
        self,
        slot: int,
        params: SamplingParams,
        *,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Starts `slot` anew for a request with this prompt that has this output so far."""
        self._seen.release(slot)
        self._counts.release(slot)
        self._repetition[slot] = params.repetition_penalty
        self._presence[slot] = params.presence_penalty
        self._frequency[slot] = params.frequency_penalty
        if params.repetition_penalty != 1.0:
            occurred = np.union1d(prompt, output).astype(np.int64)
            self._seen.acquire(slot).index_fill_(0, torch.from_numpy(occurred), True)
        if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            row_v = self._counts.acquire(slot)
            ids, counts = np.unique(output.astype(np.int64), return_counts=True)
            row_v[torch.from_numpy(ids)] = torch.from_numpy(counts.astype(np.float32))

    def apply(
        self, logits: torch.Tensor, rows: NDArray[np.int64], slots: NDArray[np.int32]
    ) -> None:
        """Penalises `logits` [S, V] in place in `rows` [R], which belong to `slots` [R]."""
        self._apply_repetition(logits, rows, slots)
        self._apply_counts(logits, rows, slots)

    def count(self, slots: NDArray[np.int32], tokens: torch.Tensor) -> None:
        """Notes that each of `slots` drew its token. Slots without penalties are passed over."""
        for table, one in ((self._seen, True), (self._counts, 1.0)):
            present = np.nonzero(table.row_of_slot[slots] >= 0)[0]
            if present.size:
                table.add(slots[present], tokens[torch.from_numpy(present)], one)

    def _apply_repetition(
        self, logits: torch.Tensor, rows: NDArray[np.int64], slots: NDArray[np.int32]
    ) -> None:
        chosen = self._seen.row_of_slot[slots] >= 0
        if not chosen.any():
            return
        index = torch.from_numpy(rows[chosen])
        penalty_r1 = torch.from_numpy(self._repetition[slots[chosen]])[:, None]
        plain_rv = logits[index]
        penalised_rv = torch.where(plain_rv > 0, plain_rv / penalty_r1, plain_rv * penalty_r1)
        seen_rv = self._seen.read(slots[chosen])
        logits[index] = torch.where(seen_rv, penalised_rv, plain_rv)

    def _apply_counts(
        self, logits: torch.Tensor, rows: NDArray[np.int64], slots: NDArray[np.int32]
    ) -> None:
        chosen = self._counts.row_of_slot[slots] >= 0
        if not chosen.any():
            return
        index = torch.from_numpy(rows[chosen])
        presence_r1 = torch.from_numpy(self._presence[slots[chosen]])[:, None]
        frequency_r1 = torch.from_numpy(self._frequency[slots[chosen]])[:, None]
        counts_rv = self._counts.read(slots[chosen])
        logits[index] -= frequency_r1 * counts_rv + presence_r1 * (counts_rv > 0)


class SlotRows:
    """A [V] row for some of the slots. Grows by doubling and reuses the rows of released slots."""

    def __init__(self, num_slots: int, vocabulary_size: int, dtype: torch.dtype) -> None:
        self.row_of_slot = np.full(num_slots, -1, np.int64)
        """-1 where a slot has none."""
        self._free: list[int] = []
        self._table = torch.zeros((0, vocabulary_size), dtype=dtype)

    def acquire(self, slot: int) -> torch.Tensor:
        """Gives `slot` a row of zeros and returns it, to be written in place."""
        assert self.row_of_slot[slot] < 0, f"slot {slot} has a row already"
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.row_of_slot[slot] = row
        return self._table[row].zero_()

    def release(self, slot: int) -> None:
        """Takes the row of `slot` back, if it has one."""
        row = int(self.row_of_slot[slot])
        if row >= 0:
            self.row_of_slot[slot] = -1
            self._free.append(row)

    def read(self, slots: NDArray[np.int32]) -> torch.Tensor:
        """Returns a copy of the rows of `slots`, each of which has one."""
        return self._table[torch.from_numpy(self.row_of_slot[slots])]

    def add(self, slots: NDArray[np.int32], tokens: torch.Tensor, amount: float) -> None:
        """Adds `amount` at a token of each of `slots`; each has a row and occurs once."""
        self._table[torch.from_numpy(self.row_of_slot[slots]), tokens] += amount

    def _grow(self) -> None:
        num_rows = self._table.shape[0]
        num_more = max(4, num_rows)
        more = self._table.new_zeros((num_more, self._table.shape[1]))
        self._table = torch.cat([self._table, more])
        self._free.extend(range(num_rows, num_rows + num_more))
