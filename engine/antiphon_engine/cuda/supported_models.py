"""Which models the kernels for CUDA compute."""

from typing import Final

import torch

from antiphon_engine.model.config import ModelConfig

_NARROW_MULTIPLE: Final = 32
"""What sizes are multiples of where weights are 8-bit floats: rows of 32 bytes are read whole."""
_NARROW_HEAD: Final = 32
"""Features of heads, at least, where keys and values are 8-bit floats: products have half as many
at a time, and 16 are the fewest."""


def supports(
    config: ModelConfig,
    dtype: torch.dtype,
    *,
    narrow_weights: bool = False,
    narrow_cache: bool = False,
) -> str | None:
    """Returns why the kernels can't compute a model, None where they can.

    Args:
        config: The model's shape.
        dtype: The type that it computes in.
        narrow_weights: Whether with 8-bit floats as weights.
        narrow_cache: Whether with 8-bit floats as keys and values.
    """
    head_dim = config.head_dim
    if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
        return f"heads of {head_dim} features: a power of two from 16 to 256 is supported"
    if narrow_cache and head_dim < _NARROW_HEAD:
        return f"heads of {head_dim} features: at least {_NARROW_HEAD} are supported"
    if dtype not in (torch.bfloat16, torch.float32):
        return f"type {dtype}: bfloat16 and float32 are supported"
    sizes = (config.hidden_size, config.num_heads * head_dim, config.intermediate_size)
    odd = next((size for size in sizes if size % _NARROW_MULTIPLE), None)
    if narrow_weights and odd is not None:
        return f"matrices with {odd} columns: for fp8 multiples of {_NARROW_MULTIPLE} are supported"
    return None
