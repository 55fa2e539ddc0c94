"""The one linear layer of all models. What its weights look like in memory is the loader's choice.

Shape suffixes: T tokens, I input features, O output features of this rank.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class LinearStorage(Protocol):
    """The weights of one layer, in whatever form its product is computed fastest."""

    def multiply(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Returns x_TI times the weights, plus the bias: [T, O]."""


class DenseStorage:
    """Weights as the checkpoint has them: [O, I]."""

    def __init__(self, weight_OI: Tensor) -> None:
        self._weight_OI = weight_OI

    def multiply(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Returns x_TI times the weights, plus the bias: [T, O]."""
        return functional.linear(x_TI, self._weight_OI, bias_O)


class Linear(nn.Module):
    """A matrix and perhaps a bias.

    The loader fills `weight` and `bias`; then it may `adopt` another storage, which frees `weight`.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False)
            if bias
            else None
        )
        self._storage: LinearStorage = DenseStorage(self.weight)

    def adopt(self, storage: LinearStorage) -> None:
        """Computes with `storage` from now on and lets go of the weights as they were loaded."""
        self._storage = storage
        self.weight = None

    def tie(self, weight: nn.Parameter) -> None:
        """Shares a matrix [O, I] with another layer."""
        self.weight = weight
        self._storage = DenseStorage(weight)

    def take(self) -> Tensor:
        """Gives the matrix [O, I] away; the layer computes nothing from then on."""
        assert self.weight is not None
        weight_OI = self.weight.data
        self.weight = None
        del self._storage
        return weight_OI

    def forward(self, x_TI: Tensor) -> Tensor:
        """Returns [T, O]."""
        return self._storage.multiply(x_TI, self.bias)
