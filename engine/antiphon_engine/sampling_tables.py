"""How each slot samples, as arrays indexed by slot: a step reads them without a loop over rows."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams, StopParams

_Scalar = TypeVar("_Scalar", bound=np.generic)

GREEDY_TEMPERATURE = 1e-5
"""At and below it rows are greedy: dividing by less would say the same, less exactly."""


def draws_greedily(params: SamplingParams) -> bool:
    """Returns whether `params` leave only the likeliest token."""
    return params.temperature <= GREEDY_TEMPERATURE or params.top_k == 1


class SamplingTables:
    """The parameters of every slot. Written when a slot gets a new owner, read by every step."""

    def __init__(self, *, num_slots: int, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self.greedy = np.ones(num_slots, np.bool_)
        self.temperature = np.ones(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int64)
        self.top_p = np.ones(num_slots, np.float64)
        self.min_p = np.zeros(num_slots, np.float64)
        self.min_output_tokens = np.zeros(num_slots, np.int32)
        self.top_logprobs = np.zeros(num_slots, np.int32)
        self.bias = RaggedRows(num_slots)
        self.ends = RaggedRows(num_slots)

    def write(
        self, slot: int, *, sampling: SamplingParams, stop: StopParams, top_logprobs: int
    ) -> None:
        """Makes `slot` sample as told."""
        self.greedy[slot] = draws_greedily(sampling)
        self.temperature[slot] = max(sampling.temperature, GREEDY_TEMPERATURE)
        # A filter that keeps everything is none: such rows need no search for candidates.
        self.top_k[slot] = 0 if sampling.top_k >= self._vocabulary_size else sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.min_output_tokens[slot] = stop.min_output_tokens
        self.top_logprobs[slot] = top_logprobs
        self.bias.write(slot, tuple(sampling.logit_bias), tuple(sampling.logit_bias.values()))
        ends: Sequence[int] = ()
        if stop.min_output_tokens > 0:
            ends = [
                token_id
                for token_id in {*stop.end_ids, *stop.stop_ids}
                if 0 <= token_id < self._vocabulary_size
            ]
        self.ends.write(slot, ends)


class RaggedRows:
    """A list of token ids with a value each for every slot, padded to be read many at once."""

    def __init__(self, num_slots: int) -> None:
        self._num = np.zeros(num_slots, np.int64)
        self._ids = np.zeros((num_slots, 0), np.int64)
        self._values = np.zeros((num_slots, 0), np.float32)

    def write(self, slot: int, token_ids: Sequence[int], values: Sequence[float] = ()) -> None:
        """Replaces the list of `slot`; widens the table where it is longer than all before."""
        num = len(token_ids)
        if num > self._ids.shape[1]:
            width = max(8, 1 << (num - 1).bit_length())
            self._ids = _widened(self._ids, width)
            self._values = _widened(self._values, width)
        self._num[slot] = num
        self._ids[slot, :num] = token_ids
        self._values[slot, :num] = values if values else 0.0

    def read(
        self, slots: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Returns (index into `slots`, token id, value) of every entry of these slots, flat."""
        num = self._num[slots]
        width = int(num.max(initial=0))
        rows, columns = np.nonzero(np.arange(width) < num[:, None])
        owners = slots[rows]
        return rows, self._ids[owners, columns], self._values[owners, columns]


def _widened(table: NDArray[_Scalar], width: int) -> NDArray[_Scalar]:
    wide = np.zeros((table.shape[0], width), table.dtype)
    wide[:, : table.shape[1]] = table
    return wide
