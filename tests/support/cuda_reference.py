"""What CUDA kernels have to compute, written plainly, in float32."""

import torch
from torch import Tensor
from torch.nn import functional

from antiphon_engine.cuda.kernels.paged_attention import Heads
from antiphon_engine.cuda.kernels.products import Product


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Returns how far tensors are apart, by their norms; NaN where anything is."""
    difference = found.float() - wanted.float()
    return float(difference.norm() / wanted.float().norm())


def product(case: Product, x: Tensor, y: Tensor) -> Tensor:
    """Returns what a product makes of x, and of what y holds."""
    x = x.float()
    if case.norm_epsilon is not None:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + case.norm_epsilon)
    sums = x @ case.weight_NK.float().t()
    if case.bias_N is not None:
        sums = sums + case.bias_N.float()
    if case.is_gate_up:
        gates, ups = sums.chunk(2, -1)
        sums = functional.silu(gates) * ups
    return sums + y.float() if case.is_added else sums


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Returns rows divided by their root mean square, times a weight."""
    x = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return x if weight is None else x * weight.float()


def prepared_heads(heads: Heads, qkv: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    """Returns queries and keys, normalised and rotated, and values: [tokens, heads, D] each."""
    num_heads, num_kv_heads = heads.num_heads, heads.num_kv_heads
    split = (num_heads, num_kv_heads, num_kv_heads)
    q, k, v = qkv.float().view(len(qkv), -1, heads.head_dim).split(split, 1)
    if heads.q_norm_D is not None:
        q = rms_norm(q, heads.q_norm_D, heads.norm_epsilon)
        k = rms_norm(k, heads.k_norm_D, heads.norm_epsilon)
    places = positions.long()
    cosine, sine = heads.cosines[places][:, None], heads.sines[places][:, None]

    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)

    return rotate(q), rotate(k), v


def attention(q: Tensor, keys: Tensor, values: Tensor, *, context: int) -> Tensor:
    """Returns causal attention of tokens behind a context: [tokens, heads, D]."""
    group = q.shape[1] // keys.shape[1]
    k, v = (side.float().repeat_interleave(group, 1) for side in (keys, values))
    scores = torch.einsum("thd,shd->hts", q.float(), k) * q.shape[-1] ** -0.5
    places = torch.arange(len(k), device=k.device)
    seen = places[None, :] <= context + torch.arange(len(q), device=k.device)[:, None]
    shares = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", shares, v)


def gathered(pool: Tensor, table: Tensor, num_tokens: int) -> Tensor:
    """Returns the first tokens of a row of the cache: [tokens, heads, D]."""
    return pool[table.long()].flatten(0, 1)[:num_tokens]
