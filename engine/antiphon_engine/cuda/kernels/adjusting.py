"""Puts penalties, biases and masks into the logits of rows, and finds their largest.

A program has a chunk of a row. What nothing is asked of is read alone.

Shape suffixes: D rows that are drawn, C chunks of the vocabulary.
"""

from typing import Final

from triton import jit
from triton import language as tl

CHUNK: Final = 4096
"""Tokens of a program."""
NUM_PARAMS = tl.constexpr(11)
"""Of a slot, float64, in the order of `slot_sampling.Param`."""
FLOOR = tl.constexpr(-1e30)
_IN_PROMPT = tl.constexpr(1 << 30)
_EDITS = tl.constexpr(128)
"""Edits that are looked at together."""


@jit
def finite(logit):
    """Returns logits without what comparisons and differences can't take."""
    logit = tl.where(logit != logit, FLOOR, logit)  # noqa: PLR0124 (what NaN alone does)
    return tl.minimum(tl.maximum(logit, FLOOR), -FLOOR)


@jit
def _penalised(logit, occurred, token, mask, how):
    seen = tl.load(occurred + token, mask=mask, other=0)
    count = (seen & (_IN_PROMPT - 1)).to(tl.float32)
    repetition = tl.load(how + 4).to(tl.float32)
    presence, frequency = tl.load(how + 5).to(tl.float32), tl.load(how + 6).to(tl.float32)
    repeated = tl.where(logit > 0, tl.div_rn(logit, repetition), logit * repetition)
    logit = tl.where(seen != 0, repeated, logit)
    return logit - (frequency * count + presence * tl.where(count > 0, 1.0, 0.0))


@jit
def _edit(logits, ids, values, first, end, chunk, ENDS: tl.constexpr, CHUNK: tl.constexpr):
    """Edits what lies in the chunk, in memory; ids occur once."""
    for start in range(first, end, _EDITS):
        edit = start + tl.arange(0, _EDITS)
        token = tl.load(ids + edit, mask=edit < end, other=-1)
        mask = (token >= 0) & (token // CHUNK == chunk)
        if ENDS:
            tl.store(logits + token, tl.full([_EDITS], FLOOR, tl.float32), mask=mask)
        else:
            value = tl.load(values + edit, mask=mask, other=0.0)
            tl.store(logits + token, tl.load(logits + token, mask=mask) + value, mask=mask)


@jit(
    do_not_specialize=["size", "num_words", "num_edits"],
    do_not_specialize_on_alignment=["rows", "slots", "positions", "masks"],
)
def adjust_kernel(
    logits,
    rows,
    slots,
    positions,
    masks,
    words,
    slot_params,
    edit_ids,
    edit_values,
    occurred,
    maxima,
    places,
    size,
    num_words,
    num_edits,
    CHUNK: tl.constexpr,
):
    """Grid: rows that are drawn, chunks. Logits are changed in place."""
    index, chunk = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    slot = tl.load(slots + index).to(tl.int64)
    mask_row = tl.load(masks + index).to(tl.int64)
    how = slot_params + slot * NUM_PARAMS
    logits += row * size
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = token < size
    logit = tl.load(logits + token, mask=mask, other=float("-inf"))

    is_penalised = tl.load(how + 10) > 0
    if is_penalised:
        logit = _penalised(logit, occurred + slot * size, token, mask, how)
        tl.store(logits + token, logit, mask=mask)
    num_biases = tl.load(how + 7).to(tl.int32)
    end = num_biases + tl.load(how + 8).to(tl.int32)
    # A mask knows where its row may end.
    is_short = (tl.load(positions + index) < tl.load(how + 9)) & (mask_row < 0)
    num_all = tl.where(is_short, end, num_biases)
    if num_all > 0:
        # Threads change what others have written, and read it again.
        ids, values = edit_ids + slot * num_edits, edit_values + slot * num_edits
        tl.debug_barrier()
        _edit(logits, ids, values, 0, num_biases, chunk, False, CHUNK)
        tl.debug_barrier()
        _edit(logits, ids, values, num_biases, num_all, chunk, True, CHUNK)
        tl.debug_barrier()
        logit = tl.load(logits + token, mask=mask, other=float("-inf"))
    if mask_row >= 0:
        word = tl.load(words + mask_row * num_words + token // 32, mask=mask, other=-1)
        is_refused = ((word >> (token % 32)) & 1) == 0
        logit = tl.where(is_refused & mask, FLOOR, logit)
        tl.store(logits + token, logit, mask=mask & is_refused)
    value, best = tl.max(tl.where(mask, finite(logit), float("-inf")), 0, return_indices=True)
    place = index * tl.num_programs(1) + chunk
    tl.store(maxima + place, value)
    tl.store(places + place, best + chunk * CHUNK)
