"""Products as steps compute them: by own kernels where few rows are multiplied, else by cuBLAS.

Shape suffixes: T rows, K input features, N output features.
"""

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from antiphon_engine.cuda.kernels.products import Product, ProductConfig, Workspace, multiply
from antiphon_engine.cuda.kernels.rows import gate, normalise
from antiphon_engine.cuda.step_buffers import StepBuffers

ROW_BOUNDS: Final = (1, 16, 32, 64)
"""Numbers of rows up to which a choice holds; from one to the next, tiles differ. Above all of them
cuBLAS was fastest wherever it was measured."""

Choices = dict[int, ProductConfig | None]
"""By the bounds of `ROW_BOUNDS`: the own kernel's configuration; None, or none at all: cuBLAS."""


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
        if config is not None:
            multiply(
                product, x_TK, y_TN, config=config, workspace=self.workspace, overlap=self.overlap
            )
        else:
            multiply_many(product, x_TK, y_TN, scratch, overlap=self.overlap)


def multiply_many(
    product: Product, x_TK: Tensor, y_TN: Tensor, scratch: StepBuffers, *, overlap: bool
) -> None:
    """Launches a product by cuBLAS, and what stands around it as kernels of their own."""
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
