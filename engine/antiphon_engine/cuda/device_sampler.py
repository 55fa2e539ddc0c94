"""Samples planned rows where the logits are: what each slot asks for is there already.

Rules and order are those of `sampler`; of what filters leave, tokens come in the order of ids, and
sums run in another order than on the CPU.

Shapes: S sampled rows, V the vocabulary.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.cuda.draw_launches import DrawTarget
from antiphon_engine.cuda.draw_slab import DrawnRows
from antiphon_engine.cuda.slot_draws import SlotDraws
from antiphon_engine.device import Device
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.likeliest import likeliest_ids
from antiphon_engine.row_logprobs import raw_logprobs
from antiphon_engine.sampler import Sampled
from antiphon_engine.step_executor import StepBuffers, row_flags, sampled_rows

_ASKS: Final = _native.FLAG_LOGPROBS | _native.FLAG_MIN_TOKENS


class DeviceSampler:
    """A StepSampler that launches draws, and only for rows that want one."""

    def __init__(self, draws: SlotDraws, device: Device) -> None:
        self._draws = draws
        self._device = device

    @torch.inference_mode()
    def assign_slot(
        self,
        slot: int,
        request: GenerationRequest,
        *,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """See StepSampler."""
        self._draws.tables.write(slot, request, prompt=prompt, output=output)

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        plan: StepBuffers,
        masks: StepMasks | None = None,
        *,
        likeliest: torch.Tensor | None = None,
    ) -> Sampled:
        """See StepSampler. Tokens are drawn into `likeliest`, where there is one."""
        if likeliest is not None and masks is None and self._is_plain(plan):
            return Sampled(tokens=likeliest, logprobs=None)
        rows = sampled_rows(plan)
        assert len(rows) == len(logits), "one position of a row is sampled at most"
        slots, flags = plan["slot"][rows], plan["flags"][rows]
        tokens = likeliest_ids(logits).int() if likeliest is None else likeliest
        raw = raw_logprobs(logits, flags, self._device)
        drawn = self._drawn_rows(plan, rows, masks)
        if len(drawn.rows):
            target = DrawTarget(logits_SV=logits, tokens_S=tokens)
            self._draws.launch(drawn, None if masks is None else masks.words, target)
        if raw is None:
            return Sampled(tokens=tokens, logprobs=None)
        num_top = self._draws.tables.num_top_logprobs(slots)
        return Sampled(tokens=tokens, logprobs=raw.of(tokens, step_rows=rows, num_top=num_top))

    def _is_plain(self, plan: StepBuffers) -> bool:
        """Returns whether it is plain at first sight that all rows take the likeliest token."""
        return self._draws.tables.is_plain and not row_flags(plan) & _ASKS

    def _drawn_rows(
        self, plan: StepBuffers, rows: NDArray[np.int64], masks: StepMasks | None
    ) -> DrawnRows:
        """Returns which of the sampled rows don't just take the likeliest token."""
        slots, positions = plan["slot"][rows], plan["output_position"][rows]
        is_drawn = self._draws.tables.draws(slots, positions)
        mask_of_row = np.full(len(rows), -1, np.int32)
        if masks is not None:
            is_drawn[masks.rows] = True
            mask_of_row[masks.rows] = np.arange(len(masks.rows), dtype=np.int32)
            # What would be drawn for them counts for nothing.
            is_drawn[masks.late] = False
        drawn = np.flatnonzero(is_drawn)
        return DrawnRows(
            rows=drawn,
            slots=slots[drawn],
            positions=positions[drawn],
            masks=mask_of_row[drawn],
            uniforms=plan["uniform"][rows[drawn]],
        )
