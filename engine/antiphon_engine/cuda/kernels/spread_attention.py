"""A decode step's attention where there are many rows: as `paged_attention`, divided otherwise.

What programs do is planned on the device once a step, for all layers: a row is cut where it is
longer than its part of all rows' tokens, and the longest pieces come first. So nobody waits for
the longest row, the device is busy to the end, and hardly a program is launched in vain: where many
rows keep the device busy, each of those takes a place that another needs.

A row's numbers depend on the lengths of the rows beside it: they say where it is cut.

Shape suffixes as in `paged_attention`; I items: pieces of rows.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton import cdiv, jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.cache_tiles import tiles_of
from antiphon_engine.cuda.kernels.decode_pieces import attend_piece, leave_part, row_places
from antiphon_engine.cuda.kernels.launching import launch_options, let_next_start
from antiphon_engine.cuda.kernels.paged_attention import LOG2_E, Heads, PagedRows

_ITEM_FIELDS: Final = 8
"""Integers of an item: row (-1: none), first token, end, the row's first item, its number of
items, its position and slot; the last is room. So a program knows from one load where its tokens
lie: one that had to be waited for behind another would be waited for by all that begin together."""
_COMPARED: Final = 8192
"""Pairs of rows that a program of the plan compares at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadConfig:
    """How all rows' tokens are divided among programs."""

    num_programs: int
    """Of all key-value heads together, that the device runs at once."""
    min_tokens: int = 256
    """Tokens that are worth a program."""
    block_tokens: int = 64
    """Tokens of one turn of a program's loop; pieces are of whole turns."""
    tile_tokens: int = 0
    """Tokens of a tile that the copy engine brings, as `tiles_of` takes it; turns are of these,
    then, and `block_tokens` of several. 0: it brings none."""
    num_stages: int = 3
    num_warps: int = 2

    def num_cuts(self, heads: Heads) -> int:
        """Returns how many items there may be beside one for each row."""
        return max(1, self.num_programs // heads.num_kv_heads)

    def num_places(self, heads: Heads) -> int:
        """Returns how many queries a matrix instruction takes for those of a key-value head."""
        group: int = next_power_of_2(heads.num_heads // heads.num_kv_heads)
        return max(8 if self.tile_tokens else 16, group)


@dataclass(frozen=True, slots=True)
class SpreadWorkspace:
    """The plan, and what programs that share a row leave for each other.

    Launches in order may share it, if each plan is followed by its attention.
    """

    items: Tensor
    """int32 [I, fields]."""
    sums: Tensor
    """float32 [I, K, G, D] and more."""
    largest: Tensor
    """float32 [I, K, G] and more: the largest scores."""
    weights: Tensor
    """float32 as `largest`: sums of weights."""
    arrivals: Tensor
    """int32 [B, K] and more; zeros between launches."""

    @classmethod
    def allocate(
        cls, heads: Heads, config: SpreadConfig, *, num_rows: int, device: torch.device
    ) -> "SpreadWorkspace":
        """Returns a workspace for rows up to so many."""
        assert config.tile_tokens == 0 or config.block_tokens % config.tile_tokens == 0
        num_items = num_rows + config.num_cuts(heads)
        cells = num_items * heads.num_heads

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            zeros(num_items, _ITEM_FIELDS),
            floats(cells, heads.head_dim),
            floats(cells),
            floats(cells),
            zeros(num_rows * heads.num_kv_heads),
        )


def plan_rows(
    rows: PagedRows, *, heads: Heads, config: SpreadConfig, workspace: SpreadWorkspace
) -> None:
    """Launches the plan of a step, an ordinary launch, which comes before its overlapping ones."""
    num_rows = rows.positions_B.shape[0]
    num_cuts = config.num_cuts(heads)
    row_places = next_power_of_2(max(num_rows, 16))
    planned = max(2, min(16, _COMPARED // row_places))
    assert num_rows + num_cuts <= len(workspace.items)
    _plan_kernel[(cdiv(num_rows, planned),)](
        rows.positions_B, rows.slots_B, workspace.items, num_rows, num_rows + num_cuts,
        CUTS=num_cuts,
        MIN_TOKENS=config.min_tokens,
        TOKENS=config.block_tokens,
        ROWS=planned,
        ROW_PLACES=row_places,
        FIELDS=_ITEM_FIELDS,
    )  # fmt: skip


def attend_spread(
    qkv_BF: Tensor,
    out_BF: Tensor,
    cache: tuple[Tensor, Tensor],
    *,
    heads: Heads,
    rows: PagedRows,
    config: SpreadConfig,
    workspace: SpreadWorkspace,
    overlap: bool = False,
) -> None:
    """Launches the attention of rows of one token, whose keys and values go into the cache.

    Args:
        qkv_BF: [B, (N + 2 K) D], queries first; neither normalised nor rotated.
        out_BF: [B, N D]; what rows at position -1 have of it stays as it is.
        cache: Keys and values of the layer, as `KvTensors` has them.
        heads: The layer's.
        rows: Where their context lies. Rows at position -1 write nothing.
        config: As these rows were planned with.
        workspace: With their plan.
        overlap: Whether the kernel may start before the one in front of it has ended.
    """
    keys, values = cache
    num_rows = rows.positions_B.shape[0]
    tiles = [tiles_of(pool, config.tile_tokens) for pool in cache]
    q_norm = qkv_BF if heads.q_norm_D is None else heads.q_norm_D
    k_norm = qkv_BF if heads.k_norm_D is None else heads.k_norm_D
    _spread_kernel[(heads.num_kv_heads, num_rows + config.num_cuts(heads))](
        qkv_BF, out_BF, keys, values, *tiles, q_norm, k_norm, heads.cosines, heads.sines,
        rows.block_tables_SM, rows.block_tables_SM.shape[1],
        workspace.items, workspace.sums, workspace.largest, workspace.weights, workspace.arrivals,
        heads.norm_epsilon, heads.head_dim**-0.5 * LOG2_E,
        HEADS=heads.num_heads,
        KV_HEADS=heads.num_kv_heads,
        ROWS=config.num_places(heads),
        D=heads.head_dim,
        BLOCK=keys.shape[1],
        NORM=heads.q_norm_D is not None,
        TOKENS=config.tile_tokens or config.block_tokens,
        STAGES=config.num_stages,
        FIELDS=_ITEM_FIELDS,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        **launch_options(overlap=overlap),
    )  # fmt: skip


@jit
def _pieces(length, limit, TOKENS: tl.constexpr):
    """Returns how many tokens each piece of a row has, in whole turns, and how many pieces."""
    num_pieces = tl.maximum(tl.cdiv(length, limit), 1)
    share = tl.cdiv(tl.cdiv(length, num_pieces), TOKENS) * TOKENS
    return share, tl.cdiv(length, tl.maximum(share, 1))


@jit
def _piece_limit(lengths, CUTS: tl.constexpr, MIN_TOKENS: tl.constexpr, TOKENS: tl.constexpr):
    """Returns how many tokens a piece has at most, in whole turns.

    That is an even part of all tokens. But where that makes a few pieces more than run at once,
    these wait for others to end: then larger ones are better, as many as the longest row has when
    no more are made than run at once. So it is if more of the even pieces than run at once are
    longer than half of one of those, as two of them come behind each other.
    """
    total, longest = tl.sum(lengths, 0), tl.max(lengths, 0)
    even = tl.cdiv(tl.maximum(tl.cdiv(total, CUTS), MIN_TOKENS), TOKENS) * TOKENS
    most = tl.maximum(CUTS * longest // tl.maximum(total, 1), 1)
    whole = tl.cdiv(tl.maximum(tl.cdiv(longest, most), MIN_TOKENS), TOKENS) * TOKENS
    shares, nums = _pieces(lengths, even, TOKENS)
    num_long = tl.sum(tl.where(2 * shares > whole, nums, 0), 0)
    return tl.where(num_long > CUTS, whole, even)


@jit(
    do_not_specialize=["num_rows", "num_items"],
    do_not_specialize_on_alignment=["positions", "slots"],
)
def _plan_kernel(
    positions, slots, items, num_rows, num_items,
    CUTS: tl.constexpr, MIN_TOKENS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    ROW_PLACES: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Grid: some rows each."""
    other = tl.arange(0, ROW_PLACES)
    lengths = tl.load(positions + other, mask=other < num_rows, other=-1) + 1
    limit = _piece_limit(lengths, CUTS, MIN_TOKENS, TOKENS)
    shares, nums = _pieces(lengths, limit, TOKENS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    position = tl.load(positions + row, mask=row < num_rows, other=-1)
    slot = tl.load(slots + row, mask=row < num_rows, other=0)
    share, num = _pieces(position + 1, limit, TOKENS)
    is_longer = shares[None, :] > share[:, None]
    is_first = (shares[None, :] == share[:, None]) & (other[None, :] < row[:, None])
    first = tl.sum(tl.where(is_longer | is_first, nums[None, :], 0), 1)
    for piece in range(tl.max(num, 0)):
        item = items + (first + piece) * FIELDS
        mask = piece < num
        tl.store(item, row, mask=mask)
        tl.store(item + 1, piece * share, mask=mask)
        tl.store(item + 2, tl.minimum((piece + 1) * share, position), mask=mask)
        tl.store(item + 3, first, mask=mask)
        tl.store(item + 4, num, mask=mask)
        tl.store(item + 5, position, mask=mask)
        tl.store(item + 6, slot, mask=mask)
    if tl.program_id(0) == 0:
        for start in range(tl.sum(nums, 0), num_items, ROW_PLACES):
            tl.store(items + (start + other) * FIELDS, -1, mask=start + other < num_items)


@jit
def _put_together(
    sums, largest, weights, first_item, num_pieces, kv_head,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Returns the attention of a row of several pieces, [ROWS, D], in their order.

    Four are taken at a time, so that their loads are waited for together.
    """
    row = tl.arange(0, ROWS)
    feature = tl.arange(0, D)
    best = tl.full([ROWS], -1.0e30, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, num_pieces, 4):
        for number in tl.static_range(4):
            is_there = row < tl.where(start + number < num_pieces, GROUP, 0)
            at = ((first_item + start + number) * KV_HEADS + kv_head) * GROUP + row
            score = tl.load(largest + at, mask=is_there, other=-1.0e30, cache_modifier=".cg")
            part_weight = tl.load(weights + at, mask=is_there, other=0.0, cache_modifier=".cg")
            part = tl.load(
                sums + at[:, None] * D + feature[None, :],
                mask=is_there[:, None], other=0.0, cache_modifier=".cg",
            )  # fmt: skip
            better = tl.maximum(best, score)
            fade, factor = tl.exp2(best - better), tl.exp2(score - better)
            weight = weight * fade + part_weight * factor
            total = total * fade[:, None] + part * factor[:, None]
            best = better
    return total / tl.where(row < GROUP, weight, 1.0)[:, None]


@jit(do_not_specialize_on_alignment=["tables"])
def _spread_kernel(
    qkv, out, keys, values, key_tiles, value_tiles, q_norm, k_norm, cosines, sines, tables,
    table_width, items, sums, largest, weights, arrivals, epsilon, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    FIELDS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: key-value heads, items. Scores are to the base of 2."""
    let_next_start(OVERLAP)
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    fields = items + item * FIELDS
    b = tl.load(fields)
    first, end = tl.load(fields + 1), tl.load(fields + 2)
    first_item, num_pieces = tl.load(fields + 3), tl.load(fields + 4)
    position, slot = tl.load(fields + 5), tl.load(fields + 6)
    if b < 0:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    table = tables + slot.to(tl.int64) * table_width
    best, weight, total = attend_piece(
        qkv, keys, values, key_tiles, value_tiles, q_norm, k_norm, cosines, sines, table, b,
        kv_head, position, first, end, item == first_item + num_pieces - 1, epsilon, scale,
        HEADS, KV_HEADS, ROWS, D, BLOCK, NORM, TOKENS, STAGES, OVERLAP,
    )  # fmt: skip
    places = row_places(out, b, kv_head, HEADS, GROUP, ROWS, D)
    is_row = (tl.arange(0, ROWS) < GROUP)[:, None]
    if num_pieces == 1:
        tl.store(places, (total / weight[:, None]).to(out.dtype.element_ty), mask=is_row)
        return
    arrival = arrivals + b * KV_HEADS + kv_head
    if leave_part(
        best, weight, total, sums, largest, weights, item * KV_HEADS + kv_head, arrival,
        num_pieces, GROUP, ROWS, D,
    ):  # fmt: skip
        merged = _put_together(
            sums, largest, weights, first_item, num_pieces, kv_head, GROUP, KV_HEADS, ROWS, D
        )
        tl.store(places, merged.to(out.dtype.element_ty), mask=is_row)
        tl.store(arrival, 0)
