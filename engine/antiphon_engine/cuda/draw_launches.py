"""What draws rows on a device: by kernels on CUDA, else by operators.

For each row, in this order: repetition penalty, presence and frequency penalties, bias, the mask of
a guided row, or that of end and stop ids before the least output; then the likeliest token where
the row is greedy, else temperature, min-p, top-k, top-p and a draw.

Shape suffixes: S rows of logits, D of them drawn, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon_engine import _kernels
from antiphon_engine.cuda.draw_slab import DrawArrays
from antiphon_engine.cuda.slot_sampling import IN_PROMPT, Param, SlotSampling
from antiphon_engine.likeliest import likeliest_ids
from antiphon_engine.sampling_draw import FLOOR, DrawParams, TokenDraws


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawTarget:
    """What draws read and write."""

    logits_SV: Tensor
    """float32, contiguous; overwritten in the rows that are drawn. NaN stands for least likely."""
    tokens_S: Tensor
    """int32: the tokens of rows that are drawn are written."""


class DrawLaunches(Protocol):
    """Draws rows by the parameters of their slots. May be captured."""

    def launch(self, step: DrawArrays, target: DrawTarget, *, num_searches: int) -> None:
        """Draws; keeps tokens as the last ones of their slots, and counts them there.

        Args:
            step: Which rows, each of another slot.
            target: Of the step.
            num_searches: Filters of the row that has most. More do no harm.
        """


def make_launches(
    tables: SlotSampling, last_tokens_S: Tensor, *, max_rows: int, vocabulary_size: int
) -> DrawLaunches:
    """Returns who draws where the tables lie; last tokens, int32, are kept for each slot."""
    if last_tokens_S.is_cuda:
        # Only here: it imports Triton.
        from antiphon_engine.cuda.kernels.drawing import DrawWorkspace, RowDrawer

        workspace = DrawWorkspace.allocate(
            num_rows=max_rows, vocabulary_size=vocabulary_size, device=last_tokens_S.device
        )
        return RowDrawer(tables, last_tokens_S, workspace)
    return OperatorDraws(tables, last_tokens_S)


class OperatorDraws:
    """DrawLaunches by PyTorch's operators and what draws on the CPU."""

    def __init__(self, tables: SlotSampling, last_tokens_S: Tensor) -> None:
        self._tables = tables
        self._last_tokens_S = last_tokens_S
        self._draws = TokenDraws()

    def launch(self, step: DrawArrays, target: DrawTarget, *, num_searches: int) -> None:
        """See DrawLaunches."""
        places = torch.nonzero(step.rows_D >= 0)[:, 0]
        if not len(places):
            return
        rows, slots = step.rows_D[places].long(), step.slots_D[places].long()
        masks = step.masks_D[places]
        logits_DV = self._penalised(target.logits_SV[rows], slots)
        is_short = step.positions_D[places] < self._params(slots, Param.MIN_OUTPUT_TOKENS)
        for row, slot in enumerate(slots.tolist()):
            self._edit(logits_DV[row], slot, has_ends=bool(is_short[row] and masks[row] < 0))
        masked = torch.nonzero(masks >= 0)[:, 0]
        words = step.words_DW[masks[masked].long()]
        _kernels.mask_logits(logits_DV.numpy(), masked.numpy(), words.numpy(), floor=FLOOR)
        target.logits_SV[rows] = logits_DV
        tokens = self._choose(logits_DV, slots, step.uniforms_D[places]).int()
        target.tokens_S[rows] = tokens
        self._last_tokens_S[slots] = tokens
        counted = self._params(slots, Param.IS_PENALISED) > 0
        self._tables.occurred_SV[slots[counted], tokens[counted].long()] += 1

    def _penalised(self, logits_DV: Tensor, slots: Tensor) -> Tensor:
        def column(param: Param) -> Tensor:
            return self._params(slots, param).float()[:, None]

        is_penalised = column(Param.IS_PENALISED) > 0
        # Elsewhere there is what the slot's last owner left.
        occurred_DV = torch.where(is_penalised, self._tables.occurred_SV[slots], 0)
        count_DV = (occurred_DV & (IN_PROMPT - 1)).float()
        repetition = column(Param.REPETITION)
        repeated_DV = torch.where(logits_DV > 0, logits_DV / repetition, logits_DV * repetition)
        logits_DV = torch.where(occurred_DV != 0, repeated_DV, logits_DV)
        presence, frequency = column(Param.PRESENCE), column(Param.FREQUENCY)
        penalty_DV = frequency * count_DV + presence * (count_DV > 0)
        return logits_DV - penalty_DV

    def _edit(self, logits_V: Tensor, slot: int, *, has_ends: bool) -> None:
        params = self._tables.params_SP[slot]
        num_biases, num_ends = int(params[Param.NUM_BIASES]), int(params[Param.NUM_ENDS])
        ids = self._tables.edit_ids_SE[slot, : num_biases + num_ends].long()
        logits_V[ids[:num_biases]] += self._tables.edit_values_SE[slot, :num_biases]
        if has_ends:
            logits_V[ids[num_biases:]] = FLOOR

    def _choose(self, logits_DV: Tensor, slots: Tensor, uniforms: Tensor) -> Tensor:
        tokens = likeliest_ids(logits_DV)
        drawn = torch.nonzero(self._params(slots, Param.TEMPERATURE) > 0)[:, 0]
        if len(drawn):
            slots = slots[drawn]
            params = DrawParams(
                temperature=self._params(slots, Param.TEMPERATURE).float().numpy(),
                top_k=self._params(slots, Param.TOP_K).long().numpy(),
                top_p=self._params(slots, Param.TOP_P).numpy(),
                min_p=self._params(slots, Param.MIN_P).numpy(),
                uniform=uniforms[drawn].numpy(),
            )
            chosen = self._draws.draw(logits_DV, drawn.numpy(), params)
            tokens[drawn] = torch.from_numpy(chosen.astype(np.int64))
        return tokens

    def _params(self, slots: Tensor, param: Param) -> Tensor:
        return self._tables.params_SP[slots, param]
