"""Checkpoints whose layers have matrices of 8-bit floats."""

import json
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_BY_ROWS = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel"},
        }
    },
}
_BY_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def narrow_checkpoint(
    source: Path, directory: Path, *, by_blocks: bool, wide: Collection[str] = ()
) -> Path:
    """Writes a checkpoint with matrices of its layers rounded, but for those named `wide`.

    Rows have scales, or blocks of 128 rows and columns, of which sizes are multiples then.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight") or name in wide:
            tensors[name] = tensor
            continue
        suffix = "_scale_inv" if by_blocks else "_scale"
        tensors[name], tensors[name + suffix] = _rounded(tensor, by_blocks)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = _BY_BLOCKS if by_blocks else _BY_ROWS
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _rounded(matrix: Tensor, by_blocks: bool) -> tuple[Tensor, Tensor]:
    if not by_blocks:
        scale = matrix.abs().amax(1, keepdim=True) / 448
        return (matrix / scale).to(torch.float8_e4m3fn), scale
    tiles = matrix.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
    scale = tiles.abs().amax((1, 3)) / 448
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (matrix / wide).to(torch.float8_e4m3fn), scale
