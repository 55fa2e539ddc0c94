"""The layers of a decoder-only transformer.

Shape suffixes: T tokens, H hidden size, N query heads, K key-value heads, D head dimension,
F feed-forward size; N, K and F are this rank's part.
The numerics are those of the transformers library: norms in float32, all else in the model's type.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon_engine.attention.base import StepAttention
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.rope import Rotation


class RmsNorm(nn.Module):
    """Divides by the root mean square over the last dimension."""

    def __init__(self, size: int, *, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the same shape and type."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self.weight * (wide * scale).to(x.dtype)


class Attention(nn.Module):
    """Self-attention with grouped key-value heads."""

    def __init__(self, config: ModelConfig, layer: int, part: Partition, dtype: torch.dtype):
        super().__init__()
        self._layer = layer
        self._head_dim = config.head_dim
        self._num_heads = part.share(config.num_heads, "attention heads")
        self._num_kv_heads = part.share(config.num_kv_heads, "key-value heads")
        self._all_reduce = part.all_reduce
        q_size = self._num_heads * config.head_dim
        kv_size = self._num_kv_heads * config.head_dim
        hidden = config.hidden_size
        self.qkv = Linear(hidden, q_size + 2 * kv_size, bias=config.qkv_bias, dtype=dtype)
        self.output = Linear(
            q_size, hidden, bias=config.output_bias and part.rank == 0, dtype=dtype
        )
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if config.qk_norm:
            self.q_norm = RmsNorm(config.head_dim, epsilon=config.norm_epsilon, dtype=dtype)
            self.k_norm = RmsNorm(config.head_dim, epsilon=config.norm_epsilon, dtype=dtype)

    def forward(self, x_TH: Tensor, rotation: Rotation, attention: StepAttention) -> Tensor:
        """Returns [T, H]."""
        heads_TnD = self.qkv(x_TH).view(x_TH.shape[0], -1, self._head_dim)
        q_TND, k_TKD, v_TKD = heads_TnD.split(
            (self._num_heads, self._num_kv_heads, self._num_kv_heads), dim=1
        )
        if self.q_norm is not None and self.k_norm is not None:
            q_TND, k_TKD = self.q_norm(q_TND), self.k_norm(k_TKD)
        out_TND = attention.attend(self._layer, rotation.apply(q_TND), rotation.apply(k_TKD), v_TKD)
        partial_TH: Tensor = self.output(out_TND.flatten(1))
        return self._all_reduce(partial_TH)


class FeedForward(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self, config: ModelConfig, part: Partition, dtype: torch.dtype) -> None:
        super().__init__()
        size = part.share(config.intermediate_size, "feed-forward features")
        self._all_reduce = part.all_reduce
        self.gate_up = Linear(config.hidden_size, 2 * size, bias=config.mlp_bias, dtype=dtype)
        self.down = Linear(
            size, config.hidden_size, bias=config.mlp_bias and part.rank == 0, dtype=dtype
        )

    def forward(self, x_TH: Tensor) -> Tensor:
        """Returns [T, H]."""
        gate_TF, up_TF = self.gate_up(x_TH).chunk(2, dim=-1)
        partial_TH: Tensor = self.down(functional.silu(gate_TF) * up_TF)
        return self._all_reduce(partial_TH)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each normalised before and added to what came in."""

    def __init__(self, config: ModelConfig, layer: int, part: Partition, dtype: torch.dtype):
        super().__init__()
        epsilon = config.norm_epsilon
        self.attention_norm = RmsNorm(config.hidden_size, epsilon=epsilon, dtype=dtype)
        self.attention = Attention(config, layer, part, dtype)
        self.feed_forward_norm = RmsNorm(config.hidden_size, epsilon=epsilon, dtype=dtype)
        self.feed_forward = FeedForward(config, part, dtype)

    def forward(self, x_TH: Tensor, rotation: Rotation, attention: StepAttention) -> Tensor:
        """Returns [T, H]."""
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), rotation, attention)
        out_TH: Tensor = x_TH + self.feed_forward(self.feed_forward_norm(x_TH))
        return out_TH
