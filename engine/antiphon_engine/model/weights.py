"""Fills a model's parameters from a checkpoint's files: each once, and nothing left over."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.blocks import expand, values_shape
from antiphon_engine.checkpoint.float8 import STORED
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import Shards, name_some
from antiphon_engine.model.scaled_weights import ScaledSink, ScaledTensors, has_nan, widened

_log = structlog.get_logger(__name__)

_DERIVED_SUFFIX = ".rotary_emb.inv_freq"
"""Some old checkpoints hold what follows from their configuration."""


class WeightSink(Protocol):
    """Takes this rank's part of a tensor, in whatever form the model keeps it."""

    def store(self, values: Tensor) -> None:
        """Takes the values; nothing of them is read after the call."""


@runtime_checkable
class BlockSink(Protocol):
    """Takes tensors that are stored in blocks as they are. Others get their values."""

    def store_blocks(self, kind: str, blocks: NDArray[np.uint8]) -> None:
        """Takes rows of blocks of GGML's type `kind`; nothing of them is read after the call."""


@dataclass(frozen=True, slots=True)
class ParameterSink:
    """Copies into a view of a parameter, all of it."""

    destination: Tensor

    def store(self, values: Tensor) -> None:
        """Copies the values, which have the shape of the destination."""
        assert values.shape == self.destination.shape
        self.destination.copy_(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTarget:
    """Where a tensor of the checkpoint goes."""

    sink: WeightSink
    source_shape: tuple[int, ...]
    """The shape that the whole tensor must have."""
    source_part: tuple[slice, ...]
    """What of the tensor is this rank's, a slice a dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedHead:
    """A model whose output matrix is its embedding; a file may hold it twice all the same."""

    head: str
    embedding: str


def load_weights(
    shards: Shards,
    targets: Mapping[str, WeightTarget],
    *,
    tied: TiedHead | None,
    on_progress: OnProgress,
    in_place: AbstractSet[str] = frozenset(),
) -> None:
    """Brings every target's tensor into place, file by file, holding one tensor at a time.

    Those that are `in_place` already are looked for and not read.

    Where embedding and output matrix are tied, a separate output matrix in the files is left out,
    with a warning if it differs.

    Raises:
        StartupError: a tensor is missing, unknown, or of the wrong shape or type. Checked from the
            headers as far as possible, before weights are read.
    """
    scaled = ScaledTensors(shards)
    names = {name for name in shards.files if not name.endswith(_DERIVED_SUFFIX)}
    names = scaled.without_scales(names)
    if tied is not None and tied.head in names:
        _warn_of_other_head(shards, tied)
        names.discard(tied.head)
    missing, unknown = targets.keys() - names, names - targets.keys()
    if missing:
        raise StartupError(f"the checkpoint lacks tensors of the model: {name_some(missing)}")
    if unknown:
        raise StartupError(f"the checkpoint has tensors unknown to the model: {name_some(unknown)}")

    done = 0
    for path, held in shards.by_file().items():
        wanted = [name for name in held if name in targets]
        with _open(path) as file:
            for name in wanted:
                _check(name, file.get_slice(name), targets[name], shards.kinds.get(name), scaled)
            for name in wanted:
                if name not in in_place:
                    _store(name, file, targets[name], shards.kinds.get(name), scaled)
                done += 1
                on_progress("load", done, len(targets))


class _TensorSlice(Protocol):
    """A tensor of a file, not read yet."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor: ...


class _File(Protocol):
    """An open safetensors file."""

    def get_slice(self, name: str) -> _TensorSlice: ...

    def get_tensor(self, name: str) -> Tensor: ...


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise StartupError(f"{path} is no whole safetensors file: {error}") from error


def _check(
    name: str,
    source: _TensorSlice,
    target: WeightTarget,
    kind: str | None,
    scaled: ScaledTensors,
) -> None:
    shape = tuple(source.get_shape())
    if kind is not None:
        shape = values_shape(name, kind, shape)
    if shape != target.source_shape:
        raise StartupError(
            f"{name} has shape {list(shape)} in the checkpoint, but its configuration asks for "
            f"{list(target.source_shape)}"
        )
    scaled.check(name, source.get_dtype())
    read = ("F32", "F16", "BF16", STORED) if kind is None else ("U8",)
    if source.get_dtype() not in read:
        raise StartupError(
            f"{name} is stored as {source.get_dtype()}: only F32, F16 and BF16 are read, and "
            f"{STORED} with scales"
        )


def _store(
    name: str, file: _File, target: WeightTarget, kind: str | None, scaled: ScaledTensors
) -> None:
    if kind is None and file.get_slice(name).get_dtype() == STORED:
        _store_scaled(name, file.get_tensor(name), target, scaled)
        return
    if kind is None:
        target.sink.store(file.get_slice(name)[target.source_part])
        return
    blocks: NDArray[np.uint8] = file.get_tensor(name).numpy()
    if isinstance(target.sink, BlockSink):
        target.sink.store_blocks(kind, blocks)
    else:
        target.sink.store(torch.from_numpy(expand(kind, blocks))[target.source_part])


def _store_scaled(name: str, values: Tensor, target: WeightTarget, scaled: ScaledTensors) -> None:
    if has_nan(values):
        raise StartupError(f"{name} has values that are no numbers")
    scale = scaled.scale(name, target.source_shape)
    if isinstance(target.sink, ScaledSink):
        target.sink.store_scaled(values, scale)
    else:
        target.sink.store(widened(values, scale)[target.source_part])


def _warn_of_other_head(shards: Shards, tied: TiedHead) -> None:
    if tied.embedding not in shards.files:
        return  # reported as missing
    with _open(shards.files[tied.head]) as file:
        head = file.get_tensor(tied.head)
    with _open(shards.files[tied.embedding]) as file:
        embedding = file.get_tensor(tied.embedding)
    if not torch.equal(head, embedding):
        _log.warning(
            "output matrix ignored: tied to the embedding by the configuration, but different",
            ignored=tied.head,
            used=tied.embedding,
        )
