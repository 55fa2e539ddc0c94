"""Turns a step's logits into tokens.

For each row, in this order: repetition penalty, presence and frequency penalties, bias, the mask of
end and stop ids before the least output, or the mask of a guided row, which knows of both; then the
likeliest token where the row is greedy, else temperature, min-p, top-k, top-p and a draw.
Log-probabilities are those of the raw logits, also of guided rows: what the model would have said.
On CUDA all of that is launched, step after step, without a wait for what a step brings.

Shapes: S sampled rows, V the vocabulary, R some of the rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.device import CPU, Device
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.likeliest import likeliest, likeliest_ids
from antiphon_engine.sampling_device import draw_on_device
from antiphon_engine.sampling_draw import FLOOR, DrawParams, draw
from antiphon_engine.sampling_penalties import Penalties, has_penalties
from antiphon_engine.sampling_tables import SamplingTables
from antiphon_engine.step_executor import StepBuffers

_ANY_PROCESSING = np.uint32(
    _native.FLAG_LOGPROBS | _native.FLAG_PENALTIES | _native.FLAG_BIAS | _native.FLAG_MIN_TOKENS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Log-probabilities of the R sampled rows that asked for them.

    On CUDA the floats and `top_ids` are complete when the step is.
    """

    rows: NDArray[np.int64]
    """[R] rows of the step."""
    chosen: NDArray[np.float32]
    """[R]"""
    num_top: NDArray[np.int32]
    """[R] how many of the likeliest were asked for."""
    top_ids: NDArray[np.int32]
    """[R, MAX_TOP_LOGPROBS or the vocabulary], likeliest first."""
    top: NDArray[np.float32]
    """As `top_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a step drew."""

    tokens: torch.Tensor
    """[S] int32, on the device."""
    logprobs: RowLogprobs | None
    """None where no row asked."""


def sampling_flags(request: GenerationRequest) -> int:
    """Returns the bits of the plan's `flags` that tell the sampler what the request's rows need."""
    flags = 0
    if request.top_logprobs is not None:
        flags |= _native.FLAG_LOGPROBS
    if has_penalties(request.sampling):
        flags |= _native.FLAG_PENALTIES
    if request.sampling.logit_bias:
        flags |= _native.FLAG_BIAS
    if request.stop.min_output_tokens > 0:
        flags |= _native.FLAG_MIN_TOKENS
    return flags


class Sampler:
    """Samples planned rows by the parameters of their slots. Used by the engine's one thread."""

    def __init__(self, *, num_slots: int, vocabulary_size: int, device: Device = CPU) -> None:
        self._device = device
        self._tables = SamplingTables(num_slots=num_slots, vocabulary_size=vocabulary_size)
        self._penalties = Penalties(
            num_slots=num_slots, vocabulary_size=vocabulary_size, device=device
        )

    def assign_slot(
        self,
        slot: int,
        request: GenerationRequest,
        *,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Makes `slot` sample for a request, from behind what it has produced so far."""
        self._tables.write(
            slot,
            sampling=request.sampling,
            stop=request.stop,
            top_logprobs=request.top_logprobs or 0,
        )
        self._penalties.write(slot, request.sampling, prompt=prompt, output=output)

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        plan: StepBuffers,
        masks: StepMasks | None = None,
        *,
        likeliest: torch.Tensor | None = None,
    ) -> Sampled:
        """Draws a token for each sampled row of the plan from `logits` [S, V]; overwrites them.

        Args:
            logits: Of the sampled positions.
            plan: The step's.
            masks: Of its guided rows.
            likeliest: The likeliest tokens of the logits, [S] int32, where they are known. They are
                returned as they are where no row wants anything else.
        """
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        step_rows = np.nonzero(np.diff(plan["sample_indptr"][: num_rows + 1]))[0]
        assert step_rows.shape[0] == logits.shape[0], "one position of a row is sampled at most"
        slots, flags = plan["slot"][step_rows], plan["flags"][step_rows]
        if likeliest is not None and masks is None and self._wants_likeliest(slots, flags):
            return Sampled(tokens=likeliest, logprobs=None)
        raw_rows, raw_logprobs = self._raw_logprobs(logits, flags)
        positions = plan["output_position"][step_rows]
        if masks is None:
            self._process(logits, slots, flags, positions)
        else:
            # Their masks know where they may end.
            flags[masks.rows] &= ~np.uint32(_native.FLAG_MIN_TOKENS)
            self._process(logits, slots, flags, positions)
            masks.apply(logits, self._device)
        tokens = self._choose(logits, slots, plan["uniform"][step_rows])
        if masks is not None:
            flags[masks.late] &= ~np.uint32(_native.FLAG_PENALTIES)
        penalised = np.nonzero(flags & _native.FLAG_PENALTIES)[0]
        if penalised.size:
            self._penalties.count(slots[penalised], tokens[self._device.upload(penalised)])
        logprobs = None
        if raw_logprobs is not None:
            logprobs = self._report(step_rows, raw_rows, raw_logprobs, slots=slots, tokens=tokens)
        return Sampled(tokens=tokens.int(), logprobs=logprobs)

    def _wants_likeliest(self, slots: NDArray[np.int32], flags: NDArray[np.uint32]) -> bool:
        """Returns whether all rows are greedy, and nothing else is asked of their logits."""
        return not (flags & _ANY_PROCESSING).any() and bool(self._tables.greedy[slots].all())

    def _raw_logprobs(
        self, logits: torch.Tensor, flags: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], torch.Tensor | None]:
        rows = np.nonzero(flags & _native.FLAG_LOGPROBS)[0]
        if not rows.size:
            return rows, None
        return rows, torch.log_softmax(logits[self._device.upload(rows)], dim=-1)

    def _process(
        self,
        logits: torch.Tensor,
        slots: NDArray[np.int32],
        flags: NDArray[np.uint32],
        positions: NDArray[np.int32],
    ) -> None:
        """Applies penalties, bias and the mask to `logits` in place."""
        penalised = np.nonzero(flags & _native.FLAG_PENALTIES)[0]
        if penalised.size:
            self._penalties.apply(logits, penalised, slots[penalised])
        biased = np.nonzero(flags & _native.FLAG_BIAS)[0]
        if biased.size:
            index, ids, values = self._tables.bias.read(slots[biased])
            rows = self._device.upload(biased[index])
            logits[rows, self._device.upload(ids)] += self._device.upload(values)
        too_short = positions < self._tables.min_output_tokens[slots]
        masked = np.nonzero((flags & _native.FLAG_MIN_TOKENS != 0) & too_short)[0]
        if masked.size:
            index, ids, _ = self._tables.ends.read(slots[masked])
            rows = self._device.upload(masked[index])
            places = (rows, self._device.upload(ids))
            # The value made on the device: another's would be waited for.
            logits.index_put_(places, logits.new_full((), FLOOR))

    def _choose(
        self, logits: torch.Tensor, slots: NDArray[np.int32], uniform: NDArray[np.float64]
    ) -> torch.Tensor:
        """Returns [S], int64 or int32."""
        greedy = self._tables.greedy[slots]
        if greedy.all():
            return likeliest_ids(logits)
        greedy_rows, drawn_rows = np.nonzero(greedy)[0], np.nonzero(~greedy)[0]
        params = self._draw_params(slots[drawn_rows], uniform[drawn_rows])
        if self._device.is_cuda:
            tokens = likeliest_ids(logits).int()
            draw_on_device(logits, drawn_rows, params, tokens)
            return tokens
        tokens = torch.empty(slots.shape[0], dtype=torch.int64)
        if greedy_rows.size:
            index = torch.from_numpy(greedy_rows)
            tokens[index] = likeliest_ids(logits[index])
            logits = logits[torch.from_numpy(drawn_rows)]
        tokens[torch.from_numpy(drawn_rows)] = torch.from_numpy(draw(logits, params))
        return tokens

    def _draw_params(self, slots: NDArray[np.int32], uniform: NDArray[np.float64]) -> DrawParams:
        tables = self._tables
        return DrawParams(
            temperature=tables.temperature[slots],
            top_k=tables.top_k[slots],
            top_p=tables.top_p[slots],
            min_p=tables.min_p[slots],
            uniform=uniform,
        )

    def _report(
        self,
        step_rows: NDArray[np.int64],
        rows: NDArray[np.int64],
        logprobs_rv: torch.Tensor,
        *,
        slots: NDArray[np.int32],
        tokens: torch.Tensor,
    ) -> RowLogprobs:
        chosen = logprobs_rv.gather(1, tokens[self._device.upload(rows)][:, None].long())[:, 0]
        top, top_ids = likeliest(logprobs_rv)
        return RowLogprobs(
            rows=step_rows[rows],
            chosen=self._device.download(chosen, np.float32),
            num_top=self._tables.top_logprobs[slots[rows]],
            top_ids=self._device.download(top_ids, np.int32),
            top=self._device.download(top, np.float32),
        )
