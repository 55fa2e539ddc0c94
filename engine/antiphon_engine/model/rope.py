"""Rotary position embeddings.

Shape suffixes: T tokens, N heads, D head dimension, F = D / 2 frequencies.
The numerics are those of the transformers library: angles in float32, products in the model's type.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_engine.model.rope_config import RopeConfig, RopeKind


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of one step's positions, in the model's type, halves repeated."""

    cos_T1D: Tensor
    sin_T1D: Tensor

    def apply(self, x_TND: Tensor) -> Tensor:
        """Returns the rotated heads."""
        first, second = x_TND.chunk(2, dim=-1)
        return x_TND * self.cos_T1D + torch.cat((-second, first), dim=-1) * self.sin_T1D


class Rope:
    """Computes rotations of positions."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        # Computed on the CPU, wherever they go: devices round powers differently.
        with torch.device("cpu"):
            frequencies_F, self._scale = rope_frequencies(config, head_dim)
        self._frequencies_F = frequencies_F.to(torch.get_default_device())

    def rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation:
        """Returns what rotates heads at these positions."""
        angles_TF = positions_T[:, None].float() * self._frequencies_F
        angles_T1D = torch.cat((angles_TF, angles_TF), dim=-1)[:, None]
        return Rotation(
            (angles_T1D.cos() * self._scale).to(dtype), (angles_T1D.sin() * self._scale).to(dtype)
        )


def rope_frequencies(config: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Returns how far each frequency turns at position 1, and what rotations are scaled by."""
    exponents_F = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain_F = 1.0 / config.theta**exponents_F
    match config.kind:
        case RopeKind.DEFAULT | RopeKind.DYNAMIC:
            return plain_F, 1.0
        case RopeKind.LINEAR:
            return plain_F / config.factor, 1.0
        case RopeKind.LLAMA3:
            return _llama3(config, plain_F), 1.0
        case RopeKind.YARN:
            stretched_F = 1.0 / (config.factor * config.theta**exponents_F)
            return _yarn(config, plain_F, stretched_F), _yarn_scale(config)


def _llama3(config: RopeConfig, plain_F: Tensor) -> Tensor:
    """Keeps short waves, stretches long ones, and blends those in between."""
    turns_F = config.original_context_tokens * plain_F / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    blend_F = ((turns_F - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend_F) * plain_F / config.factor + blend_F * plain_F


def _yarn(config: RopeConfig, plain_F: Tensor, stretched_F: Tensor) -> Tensor:
    """Keeps frequencies that turn often within the trained length, and stretches the rest."""
    head_dim = 2 * len(plain_F)

    def dimension_of(turns: float) -> float:
        waves = config.original_context_tokens / (turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(config.theta))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    ramp_F = torch.arange(len(plain_F), dtype=torch.float32)
    kept_F = 1 - ((ramp_F - low) / (high - low)).clamp(0.0, 1.0)
    return stretched_F * (1 - kept_F) + plain_F * kept_F


def _yarn_scale(config: RopeConfig) -> float:
    def scale(mscale: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * mscale * math.log(config.factor) + 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return scale(config.mscale) / scale(config.mscale_all_dim)
    return scale(1.0)
