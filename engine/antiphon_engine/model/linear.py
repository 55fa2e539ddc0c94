"""The one linear layer of all models.

Shape suffixes: T tokens, I input features, O output features of this rank.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Module):
    """A matrix [O, I] and perhaps a bias [O], which the loader fills."""

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

    def tie(self, weight: nn.Parameter) -> None:
        """Shares a matrix [O, I] with another layer."""
        self.weight = weight

    def take(self) -> Tensor:
        """Gives the matrix [O, I] away; the layer computes nothing from then on."""
        assert self.weight is not None
        weight_OI = self.weight.data
        self.weight = None
        return weight_OI

    def forward(self, x_TI: Tensor) -> Tensor:
        """Returns [T, O]."""
        assert self.weight is not None, "the matrix was given away"
        return functional.linear(x_TI, self.weight, self.bias)
