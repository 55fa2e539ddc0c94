"""How every slot draws, kept on the device: its parameters, and which tokens occurred in it.

Parameters go up when a slot has got a new owner, in front of the next draw that may read them, all
new ones together. What is drawn is counted there, by who draws. All sizes are fixed, so draws may
be captured.

Shape suffixes: S slots, P parameters, E edits of a slot's logits, V vocabulary, N new owners.
"""

from enum import IntEnum
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.device import Device
from antiphon_engine.request_checks import MAX_BIASES, MAX_STOP_IDS
from antiphon_engine.sampling_penalties import has_penalties
from antiphon_engine.sampling_tables import draws_greedily

IN_PROMPT: Final = 1 << 30
"""The bit of what occurred that tells a token of the prompt; below it is how often it was drawn."""
MAX_SEARCHES: Final = 2


class Param(IntEnum):
    """Columns of a slot's parameters."""

    TEMPERATURE = 0
    """0: the likeliest token."""
    TOP_K = 1
    """0: off."""
    TOP_P = 2
    """1: off."""
    MIN_P = 3
    """0: off."""
    REPETITION = 4
    PRESENCE = 5
    FREQUENCY = 6
    NUM_BIASES = 7
    """The slot's first edits: what is added to logits."""
    NUM_ENDS = 8
    """The edits behind them: tokens that may not come early."""
    MIN_OUTPUT_TOKENS = 9
    IS_PENALISED = 10
    """1: what occurred in the slot is kept, and matters."""


class SlotSampling:
    """Used by the engine's one thread.

    Args:
        num_slots: Slots of the core.
        vocabulary_size: Of the model.
        device: Where draws run.
    """

    def __init__(self, *, num_slots: int, vocabulary_size: int, device: Device) -> None:
        self._device = device
        self._vocabulary_size = vocabulary_size
        self._params = np.zeros((num_slots, len(Param)), np.float64)
        self._draws = np.zeros(num_slots, np.bool_)
        self._num_searches = np.zeros(num_slots, np.int32)
        self._top_logprobs = np.zeros(num_slots, np.int32)
        self._new: set[int] = set()
        where, num_edits = device.torch_device, MAX_BIASES + MAX_STOP_IDS
        self.params_SP = torch.zeros((num_slots, len(Param)), dtype=torch.float64, device=where)
        self.edit_ids_SE = torch.zeros((num_slots, num_edits), dtype=torch.int32, device=where)
        self.edit_values_SE = torch.zeros((num_slots, num_edits), device=where)
        self.occurred_SV = torch.zeros(
            (num_slots, vocabulary_size), dtype=torch.int32, device=where
        )

    def write(
        self,
        slot: int,
        request: GenerationRequest,
        *,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Makes `slot` draw for a request, from behind what it has produced so far."""
        sampling, stop = request.sampling, request.stop
        is_greedy = draws_greedily(sampling)
        top_k = 0 if sampling.top_k >= self._vocabulary_size else sampling.top_k
        is_penalised = has_penalties(sampling)
        row = self._params[slot]
        row[Param.TEMPERATURE] = 0.0 if is_greedy else np.float32(sampling.temperature)
        row[Param.TOP_K] = top_k
        row[Param.TOP_P] = sampling.top_p
        row[Param.MIN_P] = sampling.min_p
        row[Param.REPETITION] = sampling.repetition_penalty
        row[Param.PRESENCE] = sampling.presence_penalty
        row[Param.FREQUENCY] = sampling.frequency_penalty
        row[Param.NUM_BIASES] = len(sampling.logit_bias)
        row[Param.MIN_OUTPUT_TOKENS] = stop.min_output_tokens
        ends = _ends(request, self._vocabulary_size)
        row[Param.NUM_ENDS] = len(ends)
        row[Param.IS_PENALISED] = is_penalised
        self._draws[slot] = not is_greedy or is_penalised or bool(sampling.logit_bias)
        self._num_searches[slot] = 0 if is_greedy else (top_k > 0) + (sampling.top_p < 1.0)
        self._top_logprobs[slot] = request.top_logprobs or 0
        self._new.add(slot)
        if sampling.logit_bias or ends:
            self._write_edits(slot, sampling.logit_bias, ends)
        if is_penalised:
            self._write_occurred(slot, prompt, output)

    def upload_new(self) -> None:
        """Launches the way up of the parameters of slots that have new owners."""
        if not self._new:
            return
        slots_N = np.fromiter(self._new, np.int64, len(self._new))
        self._new.clear()
        upload = self._device.upload
        self.params_SP.index_copy_(0, upload(slots_N), upload(self._params[slots_N]))

    @property
    def is_plain(self) -> bool:
        """Whether no slot's token may be another than the likeliest, but for ends too early."""
        return not self._draws.any()

    def draws(self, slots: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Returns of each slot whether its token may be another than the likeliest.

        Args:
            slots: Some slots.
            positions: How many tokens each has had.
        """
        too_short = positions < self._params[slots, Param.MIN_OUTPUT_TOKENS]
        wanted: NDArray[np.bool_] = self._draws[slots] | too_short
        return wanted

    def num_searches(self, slots: NDArray[np.int32]) -> int:
        """Returns for how many filters, at most, one of these slots looks for its bound."""
        return int(self._num_searches[slots].max(initial=0))

    def num_top_logprobs(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns how many of the likeliest tokens each slot's request wants told."""
        return self._top_logprobs[slots]

    def _write_edits(self, slot: int, biases: dict[int, float], ends: list[int]) -> None:
        ids = np.array([*biases, *ends], np.int32)
        values = np.zeros(len(ids), np.float32)
        values[: len(biases)] = list(biases.values())
        self.edit_ids_SE[slot, : len(ids)] = self._device.upload(ids)
        self.edit_values_SE[slot, : len(ids)] = self._device.upload(values)

    def _write_occurred(
        self, slot: int, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> None:
        ids, counts = np.unique(output.astype(np.int64), return_counts=True)
        occurred_V = self.occurred_SV[slot].zero_()
        upload = self._device.upload
        occurred_V[upload(ids)] = upload(counts.astype(np.int32))
        in_prompt = upload(np.unique(prompt.astype(np.int64)))
        occurred_V[in_prompt] += IN_PROMPT


def _ends(request: GenerationRequest, vocabulary_size: int) -> list[int]:
    """Returns the tokens that end an output of the request and may not come early."""
    stop = request.stop
    if stop.min_output_tokens <= 0:
        return []
    return [
        token_id for token_id in {*stop.end_ids, *stop.stop_ids} if 0 <= token_id < vocabulary_size
    ]
