"""What is done with logits before and instead of drawing.

Shape suffixes: B rows, G guided ones of them, V vocabulary, C chunks of it, W words of 32 token
bits.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

_CHUNK: Final = 4096
"""Tokens of a program."""


@dataclass(frozen=True, slots=True)
class ArgmaxWorkspace:
    """The largest logit of each chunk. Launches in order may share it."""

    values_BC: Tensor
    tokens_BC: Tensor

    @classmethod
    def allocate(
        cls, *, num_rows: int, vocabulary_size: int, device: torch.device
    ) -> "ArgmaxWorkspace":
        """Returns a workspace for up to so many rows."""
        shape = (num_rows, cdiv(vocabulary_size, _CHUNK))
        return cls(
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.int32, device=device),
        )


def argmax(logits_BV: Tensor, out_B: Tensor, *, workspace: ArgmaxWorkspace) -> None:
    """Launches the choice of the first of each row's largest logits. `out_B` is int32."""
    num_rows, size = logits_BV.shape
    num_chunks = cdiv(size, _CHUNK)
    values, tokens = workspace.values_BC, workspace.tokens_BC
    assert num_rows <= len(values)
    assert num_chunks == values.shape[1]
    _chunk_kernel[(num_rows, num_chunks)](logits_BV, values, tokens, size, BLOCK=_CHUNK)
    _best_kernel[(num_rows,)](
        values, tokens, out_B, num_chunks, BLOCK=next_power_of_2(num_chunks), num_warps=1
    )


def mask_rows(logits_BV: Tensor, rows_G: Tensor, words_GW: Tensor, *, floor: float) -> None:
    """Launches the putting to `floor`, in place, of tokens that guided rows must not draw.

    Args:
        logits_BV: Contiguous.
        rows_G: int32 or int64, each once; -1: none.
        words_GW: int32, contiguous, a bit a token that is allowed; W * 32 may be more than V.
        floor: What is never drawn.
    """
    size, num_words = logits_BV.shape[1], words_GW.shape[1]
    assert num_words * 32 >= size
    _mask_kernel[(rows_G.shape[0], cdiv(size, _CHUNK))](
        logits_BV, rows_G, words_GW, size, num_words, floor, BLOCK=_CHUNK
    )


@jit
def _chunk_kernel(logits, values, tokens, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * size + token, mask=token < size, other=float("-inf"))
    value, index = tl.max(logit.to(tl.float32), 0, return_indices=True)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + place, value)
    tl.store(tokens + place, index + tl.program_id(1) * BLOCK)


@jit(do_not_specialize_on_alignment=["out"])
def _best_kernel(values, tokens, out, num_chunks, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    chunk = tl.arange(0, BLOCK)
    value = tl.load(values + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf"))
    _, index = tl.max(value, 0, return_indices=True)
    tl.store(out + row, tl.load(tokens + row * num_chunks + index))


@jit(do_not_specialize_on_alignment=["rows", "words"])
def _mask_kernel(logits, rows, words, size, num_words, floor, BLOCK: tl.constexpr):
    guided = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + guided).to(tl.int64)
    if row < 0:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < size
    word = tl.load(words + guided * num_words + token // 32, mask=mask, other=-1)
    is_refused = ((word >> (token % 32)) & 1) == 0
    place = logits + row * size + token
    tl.store(place, tl.zeros([BLOCK], logits.dtype.element_ty) + floor, mask=mask & is_refused)
