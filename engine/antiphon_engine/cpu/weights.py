"""A model's weights in memory as the kernels read them, and where a checkpoint's tensors go."""

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _kernels
from antiphon_engine.cpu.products import Matrix, Products
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.weights import ParameterSink, WeightTarget

PANEL_ROWS = 16
"""Rows of a matrix that lie together: one thread packs them."""

_SLICE_VALUES = 1 << 20
"""Values that a thread packs at once; what is converted on the way takes a multiple of that."""


class Packer:
    """Packs the rows of a tensor, divided over threads. Used while a model is loaded."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="pack")

    def pack(
        self, num_rows: int, row_values: int, pack_rows: Callable[[slice], None], *, lead: int = 0
    ) -> None:
        """Calls `pack_rows` for slices of rows that make up all of them, and waits.

        Args:
            num_rows: Rows of the tensor.
            row_values: Values of each.
            pack_rows: Packs a slice of the rows.
            lead: Rows of the matrix's present panel that come before: no two slices share a panel.
        """
        size = max(1, _SLICE_VALUES // row_values // PANEL_ROWS) * PANEL_ROWS
        bounds = [0, *range(size - lead % PANEL_ROWS, num_rows, size), num_rows]
        rows = [slice(first, end) for first, end in itertools.pairwise(bounds)]
        for _ in self._pool.map(pack_rows, rows):
            pass

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The threads."""
        return self._pool

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class PackedSink:
    """Packs a tensor into a matrix, from a row on."""

    matrix: _kernels.PackedMatrix
    first_row: int
    lead: int
    """Rows before `first_row` of its panel; gates and ups have panels of their own."""
    packer: Packer

    def store(self, values: Tensor) -> None:
        """Packs values of any type; quantizes them where the matrix says so."""
        num_rows, num_in = values.shape

        def pack_rows(rows: slice) -> None:
            self.matrix.pack(self.first_row + rows.start, _as_numpy(values[rows]))

        self.packer.pack(num_rows, num_in, pack_rows, lead=self.lead)

    def store_blocks(self, kind: str, blocks: NDArray[np.uint8]) -> None:
        """Packs rows of blocks as they are."""

        def pack_rows(rows: slice) -> None:
            self.matrix.pack_gguf(self.first_row + rows.start, kind, blocks[rows])

        self.packer.pack(len(blocks), self.matrix.num_in, pack_rows, lead=self.lead)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """A layer's weights. Vectors are float32; those that the model lacks are None."""

    attention_norm: NDArray[np.float32]
    qkv: tuple[_kernels.PackedMatrix, ...]
    qkv_bias: NDArray[np.float32] | None
    q_norm: NDArray[np.float32] | None
    k_norm: NDArray[np.float32] | None
    output: _kernels.PackedMatrix
    output_bias: NDArray[np.float32] | None
    feed_forward_norm: NDArray[np.float32]
    gate_up: _kernels.PackedMatrix
    gate_up_bias: NDArray[np.float32] | None
    down: _kernels.PackedMatrix
    down_bias: NDArray[np.float32] | None


class CpuWeights:
    """All weights of a model. Vectors and matrices are zeros until `targets` has been filled.

    `isas` has the instruction set that products will use for each form of weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        products: Products,
        *,
        isas: Mapping[str, str],
        packer: Packer,
    ) -> None:
        self._isas = isas
        self._packer = packer
        self.targets: dict[str, WeightTarget] = {}
        """Every tensor that the checkpoint must have."""
        self.matrices: list[_kernels.PackedMatrix] = []
        """Each once, always in the same order."""
        self.embedding = self._matrix(products.embedding)
        self.head = self.embedding
        if products.head is not products.embedding:
            self.head = self._matrix(products.head)
        self.norm = self._vector({"model.norm.weight": config.hidden_size})
        self.layers = [self._layer(config, products, index) for index in range(config.num_layers)]

    def _layer(self, config: ModelConfig, products: Products, index: int) -> LayerWeights:
        layer = products.layers[index]
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        hidden, feed_forward = config.hidden_size, config.intermediate_size
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        qkv_bias = {
            f"{attention}.q_proj.bias": q_size,
            f"{attention}.k_proj.bias": kv_size,
            f"{attention}.v_proj.bias": kv_size,
        }
        gate_up_bias = dict.fromkeys((f"{mlp}.gate_proj.bias", f"{mlp}.up_proj.bias"), feed_forward)
        return LayerWeights(
            attention_norm=self._vector({f"{prefix}.input_layernorm.weight": hidden}),
            qkv=tuple(self._matrix(matrix) for matrix in layer.qkv),
            qkv_bias=self._vector(qkv_bias) if config.qkv_bias else None,
            q_norm=self._head_norm(config, f"{attention}.q_norm.weight"),
            k_norm=self._head_norm(config, f"{attention}.k_norm.weight"),
            output=self._matrix(layer.output),
            output_bias=(
                self._vector({f"{attention}.o_proj.bias": hidden}) if config.output_bias else None
            ),
            feed_forward_norm=self._vector({f"{prefix}.post_attention_layernorm.weight": hidden}),
            gate_up=self._matrix(layer.gate_up),
            gate_up_bias=self._vector(gate_up_bias) if config.mlp_bias else None,
            down=self._matrix(layer.down),
            down_bias=(
                self._vector({f"{mlp}.down_proj.bias": hidden}) if config.mlp_bias else None
            ),
        )

    def _head_norm(self, config: ModelConfig, name: str) -> NDArray[np.float32] | None:
        return self._vector({name: config.head_dim}) if config.qk_norm else None

    def _matrix(self, matrix: Matrix) -> _kernels.PackedMatrix:
        packed = _kernels.PackedMatrix(
            matrix.num_out,
            matrix.num_in,
            weight_format=matrix.weight_format,
            order=matrix.order,
            isa=self._isas[matrix.weight_format],
        )
        self.matrices.append(packed)
        first_row = 0
        for part in matrix.parts:
            lead = 0 if matrix.order == "gate_up" else first_row % PANEL_ROWS
            self.targets[part.tensor] = WeightTarget(
                sink=PackedSink(packed, first_row, lead, self._packer),
                source_shape=(part.num_out, matrix.num_in),
                source_part=(slice(None), slice(None)),
            )
            first_row += part.num_out
        return packed

    def _vector(self, tensors: dict[str, int]) -> NDArray[np.float32]:
        vector = torch.zeros(sum(tensors.values()))
        parts = torch.split(vector, list(tensors.values()))
        for (name, size), part in zip(tensors.items(), parts, strict=True):
            self.targets[name] = WeightTarget(
                sink=ParameterSink(part), source_shape=(size,), source_part=(slice(None),)
            )
        array: NDArray[np.float32] = vector.numpy()
        return array


def _as_numpy(values: Tensor) -> NDArray[np.generic]:
    """Returns values as the kernels take them: float32, or the bits of bfloat16."""
    if values.dtype is torch.bfloat16:
        return values.contiguous().view(torch.int16).numpy().view(np.uint16)
    array: NDArray[np.generic] = values.float().contiguous().numpy()
    return array
