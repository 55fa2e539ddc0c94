"""Matrices that a checkpoint has as 8-bit floats with scales.

Shape suffixes: N rows, K columns.
"""

from typing import Protocol, runtime_checkable

import torch
from safetensors import safe_open
from torch import Tensor

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.float8 import SCALE_BLOCK, STORED
from antiphon_engine.checkpoint.shards import Shards, name_some


@runtime_checkable
class ScaledSink(Protocol):
    """Takes 8-bit floats as they are. Others get the values that they stand for."""

    def store_scaled(self, values_NK: Tensor, scale: Tensor) -> None:
        """Takes e4m3 [N, K], all of them numbers, and what they are multiplied by.

        Scales are float32: [N], or of blocks [N / 128, K / 128], rounded up.
        """


class ScaledTensors:
    """The scales of a checkpoint's matrices."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._format = shards.float8

    def without_scales(self, names: set[str]) -> set[str]:
        """Returns the names that aren't of scales. Raises StartupError for scales of nothing."""
        if self._format is None:
            return names
        of_weights = {name: self._format.weight_of(name) for name in names}
        astray = {name for name, weight in of_weights.items() if weight and weight not in names}
        if astray:
            raise StartupError(f"the checkpoint has scales of no matrix: {name_some(astray)}")
        return {name for name, weight in of_weights.items() if weight is None}

    def check(self, name: str, dtype: str) -> None:
        """Raises StartupError where 8-bit floats have no scales, or another tensor has some."""
        has_scales = self._format is not None and self._format.scale_of(name) in self._shards.files
        if dtype != STORED:
            if has_scales:
                raise StartupError(f"{name} has scales, but is stored as {dtype}, not {STORED}")
            return
        if self._format is None:
            raise StartupError(
                f"{name} is stored as {STORED}, but the configuration has no quantization_config"
            )
        if not has_scales:
            raise StartupError(
                f"{name} is stored as {STORED}, without {self._format.scale_of(name)}"
            )

    def scale(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns the scales of a matrix as `ScaledSink` takes them.

        Raises:
            StartupError: they are of another shape, or no numbers above zero.
        """
        assert self._format is not None
        scale_name = self._format.scale_of(name)
        with safe_open(self._shards.files[scale_name], framework="pt") as file:
            scale: Tensor = file.get_tensor(scale_name).float()
        blocks = tuple(-(-size // SCALE_BLOCK) for size in shape)
        if not (scale.isfinite() & (scale > 0)).all():
            raise StartupError(f"{scale_name} has scales that are no numbers above zero")
        if self._format.has_blocks and tuple(scale.shape) == blocks:
            return scale
        if not self._format.has_blocks and scale.numel() in (1, shape[0]):
            return scale.flatten().expand(shape[0]).contiguous()
        wanted = f"{list(blocks)}" if self._format.has_blocks else f"1 or {shape[0]} in all"
        raise StartupError(
            f"{scale_name} has shape {list(scale.shape)} in the checkpoint, but {wanted} is asked "
            f"for by {name}"
        )


def widened(values_NK: Tensor, scale: Tensor) -> Tensor:
    """Returns what 8-bit floats stand for, float32 [N, K]; scales as `ScaledSink` takes them."""
    num_rows, num_columns = values_NK.shape
    if scale.ndim == 1:
        return values_NK.float() * scale[:, None]
    wide = scale.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
    return values_NK.float() * wide[:num_rows, :num_columns]


def has_nan(values: Tensor) -> bool:
    """Returns whether any of the 8-bit floats is no number."""
    return bool(((values.view(torch.uint8) & 0x7F) == 0x7F).any())
