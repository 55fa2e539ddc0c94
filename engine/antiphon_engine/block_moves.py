"""Moves whole blocks of the KV cache, of all layers at once.

Shape suffixes: N blocks of a move, L2 the layers' keys and values in turn, B tokens of a block,
K key-value heads, D head dimension.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class BlockMoves(Protocol):
    """Moves blocks of pools [P, B, K, D] in the order of calls; block ids are int64."""

    def copy(self, source_N: Tensor, target_N: Tensor) -> None:
        """Copies whole blocks onto others; no target is a source too."""

    def pack(self, block_N: Tensor, packed_NLBKD: Tensor) -> None:
        """Copies whole blocks into one piece each, [N, L2, B, K, D]."""

    def unpack(self, packed_NLBKD: Tensor, block_N: Tensor) -> None:
        """Copies pieces into whole blocks."""


def make_moves(pools: Sequence[Tensor]) -> BlockMoves:
    """Returns the moves of these pools, where they lie."""
    if pools[0].is_cuda:
        # Only here: it imports Triton.
        from antiphon_engine.cuda.kernels.block_moves import KernelMoves

        return KernelMoves(pools)
    return OperatorMoves(pools)


class OperatorMoves:
    """BlockMoves by PyTorch's operators, pool by pool."""

    def __init__(self, pools: Sequence[Tensor]) -> None:
        self._pools = pools

    def copy(self, source_N: Tensor, target_N: Tensor) -> None:
        """See BlockMoves."""
        for pool in self._pools:
            pool.index_copy_(0, target_N, pool.index_select(0, source_N))

    def pack(self, block_N: Tensor, packed_NLBKD: Tensor) -> None:
        """See BlockMoves."""
        for index, pool in enumerate(self._pools):
            packed_NLBKD[:, index] = pool.index_select(0, block_N)

    def unpack(self, packed_NLBKD: Tensor, block_N: Tensor) -> None:
        """See BlockMoves."""
        for index, pool in enumerate(self._pools):
            pool.index_copy_(0, block_N, packed_NLBKD[:, index])
