"""The likeliest tokens of logits.

Shape suffixes: B rows, V vocabulary, C chunks of it.
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
