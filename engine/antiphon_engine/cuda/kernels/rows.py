"""What stands between products, a row at a time. Each row's numbers are its own.

Shape suffixes: T rows, H hidden size, F feed-forward size, V vocabulary.
"""

from typing import Final

from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.launching import (
    begin_step,
    launch_options,
    let_next_start,
    wait_for_previous,
)

_FEATURES: Final = 1024
"""Of a program of `gate`."""


def embed(ids_T: Tensor, embedding_VH: Tensor, out_TH: Tensor, *, overlap: bool = False) -> None:
    """Launches the gathering of embeddings: a step's first kernel. Ids are int32."""
    num_rows, size = out_TH.shape
    _embed_kernel[(num_rows,)](
        ids_T, embedding_VH, out_TH, size,
        BLOCK=next_power_of_2(size),
        OVERLAP=overlap,
        num_warps=_row_warps(size),
        **launch_options(overlap=overlap),
    )  # fmt: skip


def normalise(
    x_TH: Tensor,
    out_TH: Tensor,
    *,
    epsilon: float,
    weight_H: Tensor | None = None,
    overlap: bool = False,
) -> None:
    """Launches RMSNorm; without a weight, rows are only divided by their root mean square."""
    num_rows, size = x_TH.shape
    _normalise_kernel[(num_rows,)](
        x_TH, x_TH if weight_H is None else weight_H, out_TH, size, epsilon,
        BLOCK=next_power_of_2(size),
        WEIGHT=weight_H is not None,
        OVERLAP=overlap,
        num_warps=_row_warps(size),
        **launch_options(overlap=overlap),
    )  # fmt: skip


def gate(gate_up_TF: Tensor, out_TF: Tensor, *, overlap: bool = False) -> None:
    """Launches SiLU of the first half of each row times its second: [T, 2F] to [T, F]."""
    num_rows, size = out_TF.shape
    _gate_kernel[(num_rows, cdiv(size, _FEATURES))](
        gate_up_TF, out_TF, size,
        BLOCK=_FEATURES,
        OVERLAP=overlap,
        num_warps=4,
        **launch_options(overlap=overlap),
    )  # fmt: skip


def _row_warps(size: int) -> int:
    return 4 if size <= 2048 else 8


@jit(do_not_specialize_on_alignment=["ids"])
def _embed_kernel(ids, embedding, out, size, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    begin_step(OVERLAP)
    t = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, BLOCK)
    mask = feature < size
    row = tl.load(ids + t).to(tl.int64) * size
    tl.store(out + t * size + feature, tl.load(embedding + row + feature, mask=mask), mask=mask)


@jit
def _normalise_kernel(
    x, weight, out, size, epsilon,
    BLOCK: tl.constexpr, WEIGHT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    let_next_start(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * size
    feature = tl.arange(0, BLOCK)
    mask = feature < size
    wait_for_previous(OVERLAP)
    values = tl.load(x + row + feature, mask=mask, other=0.0).to(tl.float32)
    values *= tl.rsqrt(tl.sum(values * values, 0) / size + epsilon)
    if WEIGHT:
        values *= tl.load(weight + feature, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row + feature, values.to(out.dtype.element_ty), mask=mask)


@jit
def _gate_kernel(gate_up, out, size, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_start(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = feature < size
    wait_for_previous(OVERLAP)
    place = gate_up + row * 2 * size + feature
    gates = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    ups = tl.load(place + size, mask=mask, other=0.0).to(tl.float32)
    values = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(out + row * size + feature, values.to(out.dtype.element_ty), mask=mask)
