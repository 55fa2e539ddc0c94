"""Products as steps compute them: by own kernels where few rows are multiplied, else by cuBLAS.

Where weights are 8-bit floats, few rows are multiplied as they are, which is bound by the reading
of weights; many become 8-bit floats too, each with a scale of its own, which halves the arithmetic.

Shape suffixes: T rows, K input features, N output features.
"""

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from antiphon_engine.cuda.kernels.narrow_rows import narrow_rows
from antiphon_engine.cuda.kernels.products import Product, ProductConfig, Workspace, multiply
from antiphon_engine.cuda.kernels.rows import gate, normalise
from antiphon_engine.cuda.step_buffers import StepBuffers

_ALIGNED: Final = 16
"""What the library's products of 8-bit floats need sizes to be multiples of."""
ROW_BOUNDS: Final = (1, 16, 32, 64)
"""Numbers of rows up to which a choice holds; from one to the next, tiles differ. Above all of them
cuBLAS was fastest wherever it was measured."""

_MANY_NARROW: Final = ProductConfig(
    block_out=128, block_in=128, num_stages=3, num_warps=8, block_rows=128, prefetch_lines=0
)
"""For many rows by weights whose scales the library's products don't know."""
_PLAIN_NARROW: Final = ProductConfig(
    block_out=32, block_in=64, num_stages=2, num_warps=4, block_rows=32, prefetch_lines=0
)
"""For rows by 8-bit weights for which there is no choice."""

Choices = dict[int, ProductConfig | None]
"""By the bounds of `ROW_BOUNDS`: the own kernel's configuration; None, or none at all: cuBLAS, or
for 8-bit weights a plain one."""


def row_bound(num_rows: int) -> int | None:
    """Returns the bound that holds for a number of rows, None above all of them."""
    return next((bound for bound in ROW_BOUNDS if num_rows <= bound), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRunner:
    """Computes products on the current stream."""

    workspace: Workspace
    overlap: bool
    """Whether own kernels start before those in front of them have ended."""
    fixed: ProductConfig | None = None
    """What computes every product, whatever the choices; its `block_rows` are set."""
    choices: dict[str, Choices] = field(default_factory=dict)
    """By the kind of product."""

    def run(
        self, kind: str, product: Product, x_TK: Tensor, y_TN: Tensor, scratch: StepBuffers
    ) -> None:
        """Launches a product of the first rows; `scratch` has as many."""
        num_rows = x_TK.shape[0]
        config = self.fixed
        bound = row_bound(num_rows)
        if config is None and bound is not None:
            config = self.choices.get(kind, {}).get(bound)
        if config is None and product.is_narrow:
            config = plain_narrow(product, x_TK)
        if config is not None:
            multiply(
                product, x_TK, y_TN, config=config, workspace=self.workspace, overlap=self.overlap
            )
        else:
            multiply_many(product, x_TK, y_TN, scratch, overlap=self.overlap)


def plain_narrow(product: Product, x_TK: Tensor) -> ProductConfig | None:
    """Returns how 8-bit weights are multiplied where nothing was chosen; None: as many rows are."""
    is_many = row_bound(x_TK.shape[0]) is None and x_TK.dtype is torch.bfloat16
    if not is_many:
        return _PLAIN_NARROW
    is_even = product.num_in % _ALIGNED == 0 and product.num_out % _ALIGNED == 0
    return _MANY_NARROW if product.is_block_scaled or not is_even else None


def multiply_many(
    product: Product, x_TK: Tensor, y_TN: Tensor, scratch: StepBuffers, *, overlap: bool
) -> None:
    """Launches a product by cuBLAS, and what stands around it as kernels of their own."""
    if product.is_narrow:
        _multiply_many_narrow(product, x_TK, y_TN, scratch, overlap=overlap)
        return
    if product.norm_epsilon is not None:
        normed_TK = scratch.normed_TH
        normalise(x_TK, normed_TK, epsilon=product.norm_epsilon, overlap=overlap)
        x_TK = normed_TK
    plain_TN = scratch.gate_up_TF2 if product.is_gate_up else y_TN
    weight_KN = product.weight_NK.t()
    if product.is_added:
        y_TN.addmm_(x_TK, weight_KN)
        if product.bias_N is not None:
            y_TN.add_(product.bias_N)
    elif product.bias_N is not None:
        torch.addmm(product.bias_N, x_TK, weight_KN, out=plain_TN)
    elif plain_TN.dtype is x_TK.dtype:
        torch.mm(x_TK, weight_KN, out=plain_TN)
    else:
        torch.mm(x_TK, weight_KN, out_dtype=plain_TN.dtype, out=plain_TN)
    if product.is_gate_up:
        gate(plain_TN, y_TN, overlap=overlap)


def _multiply_many_narrow(
    product: Product, x_TK: Tensor, y_TN: Tensor, scratch: StepBuffers, *, overlap: bool
) -> None:
    num_rows, num_in = x_TK.shape
    narrow_TK = scratch.narrow_TW.view(-1)[: num_rows * num_in].view(num_rows, num_in)
    narrow_TK = narrow_TK.view(torch.float8_e4m3fn)
    scale_T = scratch.narrow_scale_T
    narrow_rows(
        x_TK,
        narrow_TK,
        scale_T,
        columns_K=product.columns_K,
        norm_epsilon=product.norm_epsilon,
        overlap=overlap,
    )
    plain_TN = scratch.gate_up_TF2 if product.is_gate_up else y_TN
    if product.is_added:
        plain_TN = scratch.normed_TH
    assert product.scale is not None
    torch._scaled_mm(
        narrow_TK,
        product.weight_NK.t(),
        scale_a=scale_T[:, None],
        scale_b=product.scale[None, :],
        out_dtype=plain_TN.dtype,
        use_fast_accum=True,
        out=plain_TN,
    )
    if product.bias_N is not None:
        plain_TN.add_(product.bias_N)
    if product.is_added:
        y_TN.add_(plain_TN)
    if product.is_gate_up:
        gate(plain_TN, y_TN, overlap=overlap)
