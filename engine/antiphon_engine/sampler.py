"""Turns a step's logits into tokens.

For each row, in this order: repetition penalty, presence and frequency penalties, bias, the mask of
end and stop ids before the least output, or the mask of a guided row, which knows of both; then the
likeliest token where the row is greedy, else temperature, min-p, top-k, top-p and a draw.
Log-probabilities are those of the raw logits, also of guided rows: what the model would have said.

Shapes: S sampled rows, V the vocabulary, R some of the rows.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.device import CPU
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.row_logprobs import RowLogprobs, raw_logprobs
from antiphon_engine.sampling_draw import FLOOR, DrawParams, TokenDraws
from antiphon_engine.sampling_penalties import Penalties, has_penalties
from antiphon_engine.sampling_tables import SamplingTables
from antiphon_engine.step_executor import StepBuffers, sampled_rows

_ANY_PROCESSING = np.uint32(
    _native.FLAG_LOGPROBS | _native.FLAG_PENALTIES | _native.FLAG_BIAS | _native.FLAG_MIN_TOKENS
)


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


class StepSampler(Protocol):
    """Samples planned rows by the parameters of their slots. Used by the engine's one thread."""

    def assign_slot(
        self,
        slot: int,
        request: GenerationRequest,
        *,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Makes `slot` sample for a request, from behind what it has produced so far."""

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
            likeliest: The likeliest tokens of the logits, [S] int32, where they are known. They may
                be overwritten, and are what is returned where all rows take them.
        """


class Sampler:
    """A StepSampler on the CPU."""

    def __init__(self, *, num_slots: int, vocabulary_size: int) -> None:
        self._tables = SamplingTables(num_slots=num_slots, vocabulary_size=vocabulary_size)
        self._penalties = Penalties(num_slots=num_slots, vocabulary_size=vocabulary_size)
        self._draws = TokenDraws()

    def assign_slot(
        self,
        slot: int,
        request: GenerationRequest,
        *,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """See StepSampler."""
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
        """See StepSampler."""
        step_rows = sampled_rows(plan)
        assert step_rows.shape[0] == logits.shape[0], "one position of a row is sampled at most"
        slots, flags = plan["slot"][step_rows], plan["flags"][step_rows]
        if likeliest is not None and masks is None and self._wants_likeliest(slots, flags):
            return Sampled(tokens=likeliest, logprobs=None)
        raw = raw_logprobs(logits, flags, CPU)
        positions = plan["output_position"][step_rows]
        if masks is None:
            self._process(logits, slots, flags, positions)
        else:
            # Their masks know where they may end.
            flags[masks.rows] &= ~np.uint32(_native.FLAG_MIN_TOKENS)
            self._process(logits, slots, flags, positions)
            masks.apply(logits)
        tokens = self._choose(logits, slots, plan["uniform"][step_rows])
        if masks is not None:
            flags[masks.late] &= ~np.uint32(_native.FLAG_PENALTIES)
        penalised = np.nonzero(flags & _native.FLAG_PENALTIES)[0]
        if penalised.size:
            self._penalties.count(slots[penalised], tokens[torch.from_numpy(penalised)].long())
        logprobs = None
        if raw is not None:
            num_top = self._tables.top_logprobs[slots]
            logprobs = raw.of(tokens, step_rows=step_rows, num_top=num_top)
        return Sampled(tokens=tokens, logprobs=logprobs)

    def _wants_likeliest(self, slots: NDArray[np.int32], flags: NDArray[np.uint32]) -> bool:
        """Returns whether all rows are greedy, and nothing else is asked of their logits."""
        return not (flags & _ANY_PROCESSING).any() and bool(self._tables.greedy[slots].all())

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
            rows = torch.from_numpy(biased[index])
            logits[rows, torch.from_numpy(ids)] += torch.from_numpy(values)
        too_short = positions < self._tables.min_output_tokens[slots]
        masked = np.nonzero((flags & _native.FLAG_MIN_TOKENS != 0) & too_short)[0]
        if masked.size:
            index, ids, _ = self._tables.ends.read(slots[masked])
            rows = torch.from_numpy(masked[index])
            places = (rows, torch.from_numpy(ids))
            logits[places] = FLOOR

    def _choose(
        self, logits: torch.Tensor, slots: NDArray[np.int32], uniform: NDArray[np.float64]
    ) -> torch.Tensor:
        """Returns [S] int32."""
        greedy = self._tables.greedy[slots]
        greedy_rows, drawn_rows = np.flatnonzero(greedy), np.flatnonzero(~greedy)
        tokens = np.empty(slots.shape[0], np.int32)
        tokens[greedy_rows] = self._draws.likeliest(logits, greedy_rows)
        params = self._draw_params(slots[drawn_rows], uniform[drawn_rows])
        tokens[drawn_rows] = self._draws.draw(logits, drawn_rows, params)
        return torch.from_numpy(tokens)

    def _draw_params(self, slots: NDArray[np.int32], uniform: NDArray[np.float64]) -> DrawParams:
        tables = self._tables
        return DrawParams(
            temperature=tables.temperature[slots],
            top_k=tables.top_k[slots],
            top_p=tables.top_p[slots],
            min_p=tables.min_p[slots],
            uniform=uniform,
        )
