"""The default model, converted once and kept where the server keeps it too."""

import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from antiphon_engine.api.checkpoint import resolve_model
from antiphon_engine.checkpoint.blocks import expand
from antiphon_engine.checkpoint.shards import find_shards

# The first use on a machine converts the model, which takes a minute or two.
FIRST_USE_LIMIT_S = 900.0


def cache_home() -> Path:
    """Returns where this user's servers keep the model, and its weights as they are packed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def default_checkpoint() -> Path:
    """Returns its checkpoint directory."""
    return resolve_model(
        "demo", cache_dir=cache_home() / "antiphon", progress=lambda stage, done, total: None
    )


def expanded_checkpoint(checkpoint: Path, directory: Path) -> Path:
    """Writes a checkpoint anew that keeps its weights in blocks, in bfloat16, and returns it.

    That is one which the transformers library reads.
    """
    for path in checkpoint.iterdir():
        if path.suffix != ".safetensors":
            (directory / path.name).write_bytes(path.read_bytes())
    shards = find_shards(checkpoint)
    for path, names in shards.by_file().items():
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in names}
        for name in names:
            if name in shards.kinds:
                values = expand(shards.kinds[name], tensors[name].numpy())
                tensors[name] = torch.from_numpy(values).bfloat16()
        save_file(tensors, directory / path.name, {"format": "pt"})
    return directory
