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
    if case.columns_K is not None:
        x = x * case.columns_K.float()
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


def narrowed(heads: Tensor) -> Tensor:
    """Returns what a cache of 8-bit floats makes of heads: [..., D]."""
    values, scales = _narrow(heads)
    return values.float() * scales


def narrow_pool(pool: Tensor) -> Tensor:
    """Returns blocks as a cache of 8-bit floats holds them: int16 [P, block, K, D / 2 + 2]."""
    values, scales = _narrow(pool)
    by_head = scales.squeeze(-1).transpose(1, 2).contiguous()
    sides = (values.view(torch.uint8).flatten(1), by_head.flatten(1).view(torch.uint8))
    block = torch.cat(sides, 1).view(torch.int16)
    return block.view(*pool.shape[:3], pool.shape[3] // 2 + 2)


def widened_pool(pool: Tensor) -> Tensor:
    """Returns what `narrow_pool`'s blocks stand for: float32 [P, block, K, D]."""
    num_blocks, block_tokens, num_heads, size = pool.shape
    head_dim = 2 * size - 4
    stored = pool.flatten(1).view(torch.uint8)
    num_values = block_tokens * num_heads * head_dim
    values = stored[:, :num_values].contiguous().view(torch.float8_e4m3fn)
    scales = stored[:, num_values:].contiguous().view(torch.float32)
    by_token = scales.view(num_blocks, num_heads, block_tokens).transpose(1, 2)
    return values.float().view(num_blocks, block_tokens, num_heads, head_dim) * by_token[..., None]


def _narrow(heads: Tensor) -> tuple[Tensor, Tensor]:
    scales = heads.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return (heads.float() / scales).to(torch.float8_e4m3fn), scales
