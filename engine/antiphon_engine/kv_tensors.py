"""The device memory of the KV cache. `KvLayout` alone knows where anything in it lies.

Shape suffixes: P blocks of the pool, B tokens of a block, K key-value heads of this rank, D head
dimension, T tokens of a step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Sizes and addresses of the cache. All layers share one block list: `kv_group` 0."""

    num_layers: int
    num_blocks: int
    """Block 0 is scratch: it takes what must not be kept."""
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        """[P, B, K, D]: a token's heads lie together, so that a step writes whole rows."""
        return (self.num_blocks, self.block_tokens, self.num_kv_heads, self.head_dim)

    def kv_group(self, layer: int) -> int:
        """Returns which block list a layer reads."""
        assert 0 <= layer < self.num_layers
        return 0


class KvTensors:
    """Keys and values of all layers. Used by the engine's one thread."""

    def __init__(self, layout: KvLayout) -> None:
        self.layout = layout
        # Zeros, not garbage: what lies behind a context's end is masked, but NaN times 0 is NaN.
        self._keys = [self._allocate() for _ in range(layout.num_layers)]
        self._values = [self._allocate() for _ in range(layout.num_layers)]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values of a layer: [P, B, K, D] each."""
        return self._keys[index], self._values[index]

    def write(self, layer: int, keys_TKD: Tensor, values_TKD: Tensor, slots_T: Tensor) -> None:
        """Stores a step's keys and values at `slots_T`: block * block_tokens + offset."""
        self._keys[layer].flatten(0, 1).index_copy_(0, slots_T, keys_TKD)
        self._values[layer].flatten(0, 1).index_copy_(0, slots_T, values_TKD)

    def copy_tokens(self, source_block: int, target_block: int, num_tokens: int) -> None:
        """Copies the first tokens of a block into another, in all layers."""
        for pool in (*self._keys, *self._values):
            pool[target_block, :num_tokens] = pool[source_block, :num_tokens]

    def _allocate(self) -> Tensor:
        return torch.zeros(self.layout.block_shape, dtype=self.layout.dtype)
