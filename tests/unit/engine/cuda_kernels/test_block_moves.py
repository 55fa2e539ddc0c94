"""Moves of whole blocks over all layers, beside PyTorch's operators."""

import pytest
import torch

from antiphon_engine.block_moves import OperatorMoves
from antiphon_engine.cuda.kernels.block_moves import KernelMoves

NUM_POOLS, NUM_BLOCKS = 6, 5
SHAPES = [(3, 2, 6), (32, 8, 130)]
"""Of a block: one that is no whole number of lines, one of several programs."""


@pytest.fixture(params=SHAPES, ids=["small", "large"])
def both(request, device):
    """The same content in pools that kernels move, and in others that operators do."""
    whole = torch.randint(
        -(1 << 15), 1 << 15, (NUM_POOLS, NUM_BLOCKS, *request.param), dtype=torch.int16
    )
    pools = [[pool.clone().to(device) for pool in whole] for _ in range(2)]
    return pools, (KernelMoves(pools[0]), OperatorMoves(pools[1]))


def ids(device, *blocks):
    return torch.tensor(blocks, dtype=torch.int64, device=device)


def assert_same(pools):
    assert all(torch.equal(*both) for both in zip(*pools, strict=True))


@pytest.mark.parametrize("blocks", [([1], [4]), ([3, 0, 3], [1, 4, 2]), ([], [])])
def test_blocks_are_copied_onto_others(both, device, blocks):
    pools, moves = both
    before = pools[0][0].clone()
    for mover in moves:
        mover.copy(*(ids(device, *side) for side in blocks))

    assert_same(pools)
    assert torch.equal(pools[0][0][blocks[1]], before[blocks[0]])


def test_pieces_are_those_of_the_operators_and_come_back(both, device):
    pools, moves = both
    shape = (2, NUM_POOLS, *pools[0][0].shape[1:])
    packed = [torch.zeros(shape, dtype=torch.int16, device=device) for _ in moves]
    for mover, piece in zip(moves, packed, strict=True):
        mover.pack(ids(device, 4, 1), piece)
        mover.unpack(piece, ids(device, 0, 3))

    assert torch.equal(*packed)
    assert packed[0].any()
    assert_same(pools)
    assert torch.equal(pools[0][2][3], pools[0][2][1])
