"""Draws a token a row under temperature, min-p, top-k and top-p, without sorting.

The rules are those of `sampling_draw`. What is drawn comes in the order of ids, and of tokens at
the bound of what filters leave, the lowest ids stay. Sums are put together in one order, so a row's
token depends on its row alone.

Shape suffixes: D rows that are drawn, C chunks of the vocabulary.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.draw_launches import DrawTarget
from antiphon_engine.cuda.draw_slab import DrawArrays
from antiphon_engine.cuda.kernels.adjusting import CHUNK, NUM_PARAMS, adjust_kernel
from antiphon_engine.cuda.kernels.searching import (
    PASSES,
    STATES,
    distances,
    largest_logit,
    search_kernel,
    staying,
    weight_of,
)
from antiphon_engine.cuda.slot_sampling import SlotSampling

_BLOCK: Final = 512
"""Tokens of one turn of a program's loop."""
_CHUNKS_OF_A_PART: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawWorkspace:
    """What launches of a draw hand on. Draws in order may share it."""

    maxima_DC: Tensor
    places_DC: Tensor
    """Of each chunk's largest logit."""
    states_2D6: Tensor
    """Of each row's search; passes in turn."""
    masses_2DC8: Tensor
    """What of each chunk, or of several, lies below each of a pass's eight edges."""
    weights_DC: Tensor
    """What stays of each chunk, without ties ..."""
    ties_DC: Tensor
    """... and how many tokens are at the bound."""
    bounds_D2: Tensor
    """The bound, as bits of a distance, and how many of its ties stay."""
    chunk: int
    """Tokens of a program."""

    @classmethod
    def allocate(
        cls, *, num_rows: int, vocabulary_size: int, device: torch.device, chunk: int = CHUNK
    ) -> "DrawWorkspace":
        """Returns a workspace for up to so many rows."""
        num_chunks = cdiv(vocabulary_size, chunk)

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            maxima_DC=empty(num_rows, num_chunks, dtype=torch.float32),
            places_DC=empty(num_rows, num_chunks, dtype=torch.int32),
            states_2D6=empty(2, num_rows, STATES, dtype=torch.float64),
            masses_2DC8=empty(2, num_rows, num_chunks, 8, dtype=torch.float64),
            weights_DC=empty(num_rows, num_chunks, dtype=torch.float64),
            ties_DC=empty(num_rows, num_chunks, dtype=torch.int32),
            bounds_D2=empty(num_rows, 2, dtype=torch.int32),
            chunk=chunk,
        )


@dataclass(frozen=True, slots=True)
class RowDrawer:
    """DrawLaunches with three launches, and twelve more for each filter of a row."""

    tables: SlotSampling
    last_tokens_S: Tensor
    workspace: DrawWorkspace
    few_rows: int = 32
    """Up to so many, programs of a search have one chunk each."""

    def launch(self, step: DrawArrays, target: DrawTarget, *, num_searches: int) -> None:
        """See DrawLaunches."""
        size, work = target.logits_SV.shape[1], self.workspace
        num_chunks = cdiv(size, work.chunk)
        assert num_chunks == work.maxima_DC.shape[1]
        assert step.num_rows <= len(work.maxima_DC)
        self._adjust(step, target, num_chunks)
        grid = (step.num_rows, num_chunks)
        rows = (step.rows_D, step.slots_D, self.tables.params_SP, work.maxima_DC)
        # Many rows keep the device busy with few programs each, which begin less often.
        part = work.chunk * (1 if step.num_rows <= self.few_rows else _CHUNKS_OF_A_PART)
        num_parts = cdiv(size, part)
        search = (work.states_2D6, work.masses_2DC8, len(work.maxima_DC), size)
        stays = (work.weights_DC, work.ties_DC, work.bounds_D2)
        sizes = {"CHUNK": work.chunk, "CHUNKS": next_power_of_2(num_chunks), "num_warps": 4}
        parts = {"PARTS": next_power_of_2(num_parts), "BLOCK": min(_BLOCK, work.chunk)}
        for number in range(PASSES * num_searches):
            search_kernel[(step.num_rows, num_parts)](
                target.logits_SV,
                *rows,
                *search,
                num_chunks,
                number,
                PART=part,
                CHUNKS=sizes["CHUNKS"],
                num_warps=4,
                **parts,
            )
        _weigh_kernel[grid](target.logits_SV, *rows, *search, num_parts, *stays, **sizes, **parts)
        _pick_kernel[(step.num_rows,)](
            target.logits_SV,
            *rows,
            work.places_DC,
            *stays,
            step.uniforms_D,
            target.tokens_S,
            self.last_tokens_S,
            self.tables.occurred_SV,
            size,
            num_chunks,
            **sizes | {"num_warps": 8},
        )

    def _adjust(self, step: DrawArrays, target: DrawTarget, num_chunks: int) -> None:
        tables, work = self.tables, self.workspace
        adjust_kernel[(step.num_rows, num_chunks)](
            target.logits_SV,
            step.rows_D,
            step.slots_D,
            step.positions_D,
            step.masks_D,
            step.words_DW,
            tables.params_SP,
            tables.edit_ids_SE,
            tables.edit_values_SE,
            tables.occurred_SV,
            work.maxima_DC,
            work.places_DC,
            target.logits_SV.shape[1],
            step.words_DW.shape[1],
            tables.edit_ids_SE.shape[1],
            CHUNK=work.chunk,
            num_warps=4,
            # Penalties to the last bit as on the CPU.
            enable_fp_fusion=False,
        )


@jit(
    do_not_specialize=["num_rows", "size", "num_parts"],
    do_not_specialize_on_alignment=["rows", "slots"],
)
def _weigh_kernel(
    logits,
    rows,
    slots,
    slot_params,
    maxima,
    states,
    masses,
    num_rows,
    size,
    num_parts,
    weights,
    ties,
    bounds,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
):
    index, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    how = slot_params + tl.load(slots + index).to(tl.int64) * NUM_PARAMS
    temperature = tl.load(how).to(tl.float32)
    if temperature == 0:
        return
    bound, num_ties = staying(states, masses, how, index, num_rows, size, num_parts, PARTS)
    largest = largest_logit(maxima, index, num_chunks, CHUNKS)
    total, num_at = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.int32)
    for start in range(0, CHUNK, BLOCK):
        place = chunk * CHUNK + start + tl.arange(0, BLOCK)
        below = distances(logits + row * size, place, size, largest, temperature)
        key = below.to(tl.int32, bitcast=True)
        total += tl.where(key < bound, tl.exp(-below), 0.0).to(tl.float64)
        num_at += ((key == bound) & (place < size)).to(tl.int32)
    place = index * num_chunks + chunk
    tl.store(weights + place, tl.sum(total, 0))
    tl.store(ties + place, tl.sum(num_at, 0))
    if chunk == 0:
        tl.store(bounds + index * 2, bound)
        tl.store(bounds + index * 2 + 1, num_ties)


@jit
def _drawn(
    logits, weights, ties, size, largest, temperature, bound, num_ties, uniform, num_chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """Returns the token of a row at which what stays reaches its share, in the order of ids."""
    chunk = tl.arange(0, CHUNKS)
    num_at = tl.load(ties + chunk, mask=chunk < num_chunks, other=0)
    ties_before = tl.cumsum(num_at, 0) - num_at
    num_left = tl.minimum(tl.maximum(num_ties - ties_before, 0), num_at)
    mass = tl.load(weights + chunk, mask=chunk < num_chunks, other=0.0)
    mass += num_left.to(tl.float64) * weight_of(bound)
    reached = tl.cumsum(mass, 0)
    wanted = uniform * tl.max(reached, 0)
    # Rounding may put what is wanted at the sum itself: then it is the last that weighs something.
    last_chunk = tl.max(tl.where(mass > 0, chunk, 0), 0)
    chosen = tl.min(tl.where((reached > wanted) & (mass > 0), chunk, last_chunk), 0)
    before = tl.sum(tl.where(chunk == chosen, reached - mass, 0.0), 0)
    num_ties -= tl.sum(tl.where(chunk == chosen, ties_before, 0), 0)

    place = chosen * CHUNK + tl.arange(0, CHUNK)
    below = distances(logits, place, size, largest, temperature)
    key = below.to(tl.int32, bitcast=True)
    is_tie = ((key == bound) & (place < size)).to(tl.int32)
    rank = tl.cumsum(is_tie, 0) - is_tie
    stays = (key < bound) | ((is_tie > 0) & (rank < num_ties))
    weight = tl.where(stays, tl.exp(-below), 0.0).to(tl.float64)
    is_behind = stays & (before + tl.cumsum(weight, 0) > wanted)
    token = tl.min(tl.where(is_behind, place, size), 0)
    last_token = tl.max(tl.where(weight > 0, place, 0), 0)
    return tl.where(token < size, token, last_token)


@jit(
    do_not_specialize=["size", "num_chunks"],
    do_not_specialize_on_alignment=["rows", "slots", "uniforms", "tokens"],
)
def _pick_kernel(
    logits,
    rows,
    slots,
    slot_params,
    maxima,
    places,
    weights,
    ties,
    bounds,
    uniforms,
    tokens,
    last_tokens,
    occurred,
    size,
    num_chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    index = tl.program_id(0)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    slot = tl.load(slots + index).to(tl.int64)
    how = slot_params + slot * NUM_PARAMS
    temperature = tl.load(how).to(tl.float32)
    chunk, first = tl.arange(0, CHUNKS), index * num_chunks
    value = tl.load(maxima + first + chunk, mask=chunk < num_chunks, other=float("-inf"))
    largest, best = tl.max(value, 0, return_indices=True)
    token = tl.load(places + first + best)
    if temperature > 0:
        bound, num_ties = tl.load(bounds + index * 2), tl.load(bounds + index * 2 + 1)
        token = _drawn(
            logits + row * size, weights + first, ties + first, size, largest, temperature, bound,
            num_ties, tl.load(uniforms + index), num_chunks, CHUNK, CHUNKS,
        )  # fmt: skip
    tl.store(tokens + row, token)
    tl.store(last_tokens + slot, token)
    if tl.load(how + 10) > 0:
        count = occurred + slot * size + token
        tl.store(count, tl.load(count) + 1)
