"""Matrices of layers that a checkpoint has as 8-bit floats, taken as they are stored.

Several tensors make up a matrix. It is kept where all of them are 8-bit floats and no block of
scales reaches from one into the next; else they become the engine's type as they are read. What is
kept never takes the memory that it would in that type.

Shape suffixes: N rows, K columns.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from antiphon_engine.checkpoint.float8 import SCALE_BLOCK, STORED
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import find_shards, names_of_type
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.narrow import NARROW
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.transformer import Transformer
from antiphon_engine.model.transformer_weights import EMBEDDING, HEAD, weight_targets
from antiphon_engine.model.weights import TiedHead, WeightTarget, load_weights

_EVEN_COLUMNS: Final = 32
"""What K is a multiple of: the kernels read pairs of features in pieces of so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """A matrix and its scales; filled part by part."""

    values_NK: Tensor
    """e4m3."""
    scale: Tensor
    """float32, [N], or by blocks [N / 128, K / 128]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartSink:
    """Takes one tensor of a matrix, from a row on."""

    matrix: StoredMatrix
    first_row: int

    def store(self, values: Tensor) -> None:
        """Is not called: these matrices are made for tensors that have scales."""
        raise AssertionError(f"{tuple(values.shape)} came without scales")

    def store_scaled(self, values_NK: Tensor, scale: Tensor) -> None:
        """See ScaledSink."""
        self.matrix.values_NK[self.first_row :][: len(values_NK)].copy_(values_NK)
        first = self.first_row // (SCALE_BLOCK if scale.ndim == 2 else 1)
        self.matrix.scale[first:][: len(scale)].copy_(scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLoader:
    """Fills a model that was made without memory, on the meta device."""

    source: Transformer
    config: ModelConfig
    """The model's shape."""
    device: torch.device
    """Where weights go."""

    def load(
        self, checkpoint: Path, *, keeps_stored: bool, on_progress: OnProgress
    ) -> dict[Linear, StoredMatrix]:
        """Reads a checkpoint into the model, which gets memory but for what is kept.

        Args:
            checkpoint: The checkpoint's directory.
            keeps_stored: Whether 8-bit floats are kept at all.
            on_progress: Is told how far it is.

        Returns:
            What is kept, by the layers whose matrices they are: those have none.

        Raises:
            StartupError: the weights aren't exactly the model's.
        """
        shards = find_shards(checkpoint)
        stored: dict[Linear, StoredMatrix] = {}
        sinks: dict[str, _PartSink] = {}
        if keeps_stored and shards.float8 is not None:
            names = names_of_type(shards, STORED)
            for linear, parts in _matrices(self.source, self.config):
                if names.issuperset(parts):
                    matrix = _allocate(linear, parts, shards.float8.has_blocks, self.device)
                    if matrix is not None:
                        stored[linear] = matrix
                        sinks |= _part_sinks(matrix, parts)
        self.give_memory(without=stored)
        targets = weight_targets(self.source, self.config, Partition())
        is_tied = self.config.tied_embeddings
        load_weights(
            shards,
            {name: _into(target, sinks.get(name)) for name, target in targets.items()},
            tied=TiedHead(head=HEAD, embedding=EMBEDDING) if is_tied else None,
            on_progress=on_progress,
        )
        return stored

    def give_memory(self, *, without: Collection[Linear] = ()) -> None:
        """Gives the model memory for its parameters, but for some matrices."""
        for module in self.source.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, Linear) and module in without and name == "weight":
                    continue
                memory = torch.empty_like(parameter, device=self.device)
                setattr(module, name, nn.Parameter(memory, requires_grad=False))
        if self.config.tied_embeddings:
            self.source.head.tie(self.source.embedding)


def _matrices(
    source: Transformer, config: ModelConfig
) -> Iterator[tuple[Linear, Mapping[str, int]]]:
    """Returns layers' matrices, and the tensors that make them up with their rows, in order."""
    kv_size = config.num_kv_heads * config.head_dim
    for index, layer in enumerate(source.layers):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        yield (
            layer.attention.qkv,
            {
                f"{attention}.q_proj.weight": config.num_heads * config.head_dim,
                f"{attention}.k_proj.weight": kv_size,
                f"{attention}.v_proj.weight": kv_size,
            },
        )
        yield layer.attention.output, {f"{attention}.o_proj.weight": config.hidden_size}
        yield (
            layer.feed_forward.gate_up,
            {
                f"{mlp}.gate_proj.weight": config.intermediate_size,
                f"{mlp}.up_proj.weight": config.intermediate_size,
            },
        )
        yield layer.feed_forward.down, {f"{mlp}.down_proj.weight": config.hidden_size}


def _allocate(
    linear: Linear, parts: Mapping[str, int], has_blocks: bool, device: torch.device
) -> StoredMatrix | None:
    """Returns memory for a matrix as it is stored; None where it can't be kept so."""
    assert linear.weight is not None
    num_rows, num_columns = linear.weight.shape
    shape: tuple[int, ...] = (num_rows,)
    if has_blocks:
        if any(size % SCALE_BLOCK for size in (*parts.values(), num_columns)):
            return None
        shape = (num_rows // SCALE_BLOCK, num_columns // SCALE_BLOCK)
    if num_columns % _EVEN_COLUMNS:
        return None
    return StoredMatrix(
        values_NK=torch.empty((num_rows, num_columns), dtype=NARROW, device=device),
        scale=torch.empty(shape, dtype=torch.float32, device=device),
    )


def _part_sinks(matrix: StoredMatrix, parts: Mapping[str, int]) -> dict[str, _PartSink]:
    sinks, first_row = {}, 0
    for name, num_rows in parts.items():
        sinks[name] = _PartSink(matrix=matrix, first_row=first_row)
        first_row += num_rows
    return sinks


def _into(target: WeightTarget, sink: _PartSink | None) -> WeightTarget:
    return target if sink is None else replace(target, sink=sink)
