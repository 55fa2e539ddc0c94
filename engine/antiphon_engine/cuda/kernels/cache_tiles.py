"""Attention of few queries over tiles of the cache that the device's copy engine brings.

A tile is of one block and one head: a box of the cache, which one instruction asks for, without an
address for each thread. Tokens are the rows of the products and queries their columns, as few as
there are: eight fill a matrix instruction. So a turn takes a quarter of the instructions that it
takes by `cached_tokens.attend_tokens`, which shows where the device is at the limit of its power.

Tiles are not masked: all of their tokens are the row's own.

Shape suffixes: as in `cached_tokens`.
"""

from torch import Tensor
from triton import jit
from triton import language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def tiles_of(pool_PBKD: Tensor, tile_tokens: int) -> TensorDescriptor | None:
    """Returns a layer's keys or values as what tiles are taken from.

    Args:
        pool_PBKD: Not of 8-bit floats.
        tile_tokens: A power of two from 16, of which a block has a multiple; 0: there are no tiles.
    """
    if tile_tokens == 0:
        return None
    num_blocks, block_tokens, num_kv_heads, head_dim = pool_PBKD.shape
    assert block_tokens % tile_tokens == 0
    rows = pool_PBKD.view(num_blocks * block_tokens, num_kv_heads * head_dim)
    return TensorDescriptor.from_tensor(rows, [tile_tokens, head_dim])


@jit
def attend_tiles(
    q, key_tiles, value_tiles, table, kv_head, first, num_tiles, best, weight, total, scale,
    BLOCK: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Goes on with a sum over so many tiles of TOKENS tokens, the first of which is `first`."""
    column = kv_head * D
    queries = tl.trans(q)
    totals = tl.trans(total)
    weights = tl.zeros([TOKENS, ROWS], tl.float32)
    block = tl.load(table + first // BLOCK)
    for tile in tl.range(num_tiles, num_stages=STAGES):
        row = block * BLOCK + (first + tile * TOKENS) % BLOCK
        k = key_tiles.load([row, column])
        v = value_tiles.load([row, column])
        # Known a turn ahead, so that no tile waits for where it is.
        following = first + tl.maximum(tl.minimum(tile + 1, num_tiles - 1), 0) * TOKENS
        block = tl.load(table + following // BLOCK)
        scores = tl.dot(k, queries, input_precision="ieee")
        better = tl.maximum(best, tl.max(scores, 0) * scale)
        fade = tl.exp2(best - better)
        shares = tl.exp2(scores * scale - better[None, :])
        weights = weights * fade[None, :] + shares
        totals *= fade[None, :]
        totals = tl.dot(tl.trans(v), shares.to(v.dtype), totals, input_precision="ieee")
        weight *= fade
        best = better
    return best, weight + tl.sum(weights, 0), tl.trans(totals)
