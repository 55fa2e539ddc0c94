"""The KV cache's memory, on the device and on the host. `KvLayout` alone knows where what lies.

Shape suffixes: P blocks of the pool, B tokens of a block, K key-value heads of this rank, D head
dimension, T tokens of a step, N blocks of a copy, L2 the layers' keys and values in turn.
"""

import math
import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from antiphon_engine.api.errors import StartupError
from antiphon_engine.block_moves import make_moves

NARROW: Final = torch.float8_e4m3fn
"""The element type of a cache of 8-bit floats, each head of a token with a scale of its own."""
_SCALE_BYTES: Final = 4
_LINE_BYTES: Final = 64
"""Of the processor's caches: pools begin with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Sizes and addresses of the cache. All layers share one block list: `kv_group` 0."""

    num_layers: int
    num_blocks: int
    """On the device. Block 0 is scratch: it takes what must not be kept."""
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    num_host_blocks: int = 0
    """In main memory, numbered from 1."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers, keys and values, with scales if there are any."""
        head_bytes = self.block_shape[-1] * self.stored_dtype.itemsize
        return 2 * self.num_layers * self.num_kv_heads * head_bytes

    @property
    def stored_dtype(self) -> torch.dtype:
        """What pools are tensors of: 8-bit floats lie in pairs, as 16-bit integers."""
        return torch.int16 if self.dtype is NARROW else self.dtype

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        """[P, B, K, D]: a token's heads lie together, so that a step writes whole rows.

        Of 8-bit floats [P, B, K, D / 2 + 2] pairs: so many they are with their scales, which lie
        behind all values of their block. How, is `cuda.kernels.cached_tokens`' to say: nothing else
        looks into such a block.
        """
        size = self.head_dim
        if self.dtype is NARROW:
            size = (self.head_dim + _SCALE_BYTES) // self.stored_dtype.itemsize
        return (self.num_blocks, self.block_tokens, self.num_kv_heads, size)

    def packed_shape(self, num_blocks: int) -> tuple[int, int, int, int, int]:
        """[N, L2, B, K, D]: a block of all layers in one piece, as it lies on the host."""
        return (num_blocks, 2 * self.num_layers, *self.block_shape[1:])

    def kv_group(self, layer: int) -> int:
        """Returns which block list a layer reads."""
        assert 0 <= layer < self.num_layers
        return 0


class KvTensors:
    """Keys and values of all layers on the device. Used by the engine's one thread."""

    def __init__(self, layout: KvLayout, device: torch.device | None = None) -> None:
        self.layout = layout
        # Zeros, not garbage: what lies behind a context's end is masked, but NaN times 0 is NaN.
        self._pools = [
            _zeros(layout.block_shape, layout.stored_dtype, device)
            for _ in range(2 * layout.num_layers)
        ]
        self._moves = make_moves(self._pools)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values of a layer, of the layout's `block_shape` each."""
        return self._pools[2 * index], self._pools[2 * index + 1]

    def write(self, layer: int, keys_TKD: Tensor, values_TKD: Tensor, slots_T: Tensor) -> None:
        """Stores a step's keys and values at `slots_T`: block * block_tokens + offset.

        Not for 8-bit floats, which kernels store.
        """
        assert self.layout.dtype is not NARROW
        keys_PBKD, values_PBKD = self.layer(layer)
        keys_PBKD.flatten(0, 1).index_copy_(0, slots_T, keys_TKD)
        values_PBKD.flatten(0, 1).index_copy_(0, slots_T, values_TKD)

    def copy_blocks(self, source_N: Tensor, target_N: Tensor) -> None:
        """Copies whole blocks onto others; no target is a source too."""
        self._moves.copy(source_N, target_N)

    def pack(self, blocks_N: Tensor, packed_NLBKD: Tensor) -> None:
        """Copies whole blocks into one piece each."""
        self._moves.pack(blocks_N, packed_NLBKD)

    def unpack(self, packed_NLBKD: Tensor, blocks_N: Tensor) -> None:
        """Copies pieces into whole blocks."""
        self._moves.unpack(packed_NLBKD, blocks_N)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Returns zeros. In main memory their pages come when they are written first."""
    if device is not None and device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    lines = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    first = -lines.ctypes.data % _LINE_BYTES
    return torch.from_numpy(lines[first : first + num_bytes]).view(dtype).view(shape)


class HostKv:
    """Blocks that had to leave the device: keys and values of all layers in one piece each.

    Raises:
        StartupError: the memory can't be had, or not be pinned.
    """

    def __init__(self, layout: KvLayout, *, pinned: bool) -> None:
        shape = layout.packed_shape(layout.num_host_blocks)
        try:
            self._packed_PLBKD = torch.zeros(shape, dtype=layout.stored_dtype)
        except RuntimeError as error:
            raise StartupError(f"engine.host_cache_bytes can't be allocated: {error}") from error
        if pinned:
            _pin(self._packed_PLBKD)

    def block(self, block: int) -> Tensor:
        """Returns a block, [L2, B, K, D]."""
        return self._packed_PLBKD[block - 1]

    def store(self, packed_NLBKD: Tensor, blocks_N: Tensor) -> None:
        """Copies pieces of the host into `blocks_N`."""
        self._packed_PLBKD.index_copy_(0, blocks_N - 1, packed_NLBKD)

    def load(self, blocks_N: Tensor) -> Tensor:
        """Returns a copy of `blocks_N`, [N, L2, B, K, D]."""
        return self._packed_PLBKD.index_select(0, blocks_N - 1)


def _pin(tensor: Tensor) -> None:
    """Locks ordinary memory in place until the tensor is gone.

    PyTorch's own pinned memory comes in powers of two: up to twice of what was asked for.
    """
    runtime = torch.cuda.cudart()
    address, num_bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    status = int(runtime.cudaHostRegister(address, num_bytes, 0))
    if status:
        raise StartupError(
            f"engine.host_cache_bytes: {num_bytes} bytes of main memory can't be pinned (CUDA "
            f"error {status}); lower it, or raise the limit of locked memory"
        )
    weakref.finalize(tensor, runtime.cudaHostUnregister, address)
