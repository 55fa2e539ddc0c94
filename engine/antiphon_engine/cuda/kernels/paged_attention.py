"""A decode step's attention in one kernel.

It normalises and rotates heads, stores the new key and value, attends to the cache, and sums what
programs did that share a row.

How many programs share a row follows from its length, which is read on the device: a captured
launch has as many as there may be, and those that aren't needed end at once. So it serves rows that
grow. A row's numbers depend on its own length and on the configuration.

Shape suffixes: B rows, N query heads, K key-value heads, D head dimension, P blocks of the pool,
G query heads of a key-value head.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.kernels.decode_pieces import attend_piece, leave_part, row_places
from antiphon_engine.cuda.kernels.launching import launch_options, let_next_start

LOG2_E: Final = 1.4426950408889634
"""Scores are to the base of 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedConfig:
    """How rows are divided among programs."""

    max_splits: int
    """Programs that share a row's tokens, at most; a power of two."""
    min_split_tokens: int
    """Tokens that are worth a program."""
    block_tokens: int = 64
    """Tokens of one turn of a program's loop."""
    num_stages: int = 3
    num_warps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What a layer's heads are, and how they are prepared."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    cosines: Tensor
    """float32 [positions, D / 2]; scaled as the model asks."""
    sines: Tensor
    q_norm_D: Tensor | None
    """The norm of each query head; None: there is none."""
    k_norm_D: Tensor | None
    norm_epsilon: float

    @property
    def width(self) -> int:
        """Features of a token's queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """Rows of one token: see `step_rows.DecodeRows`."""

    positions_B: Tensor
    slots_B: Tensor
    block_tables_SM: Tensor


@dataclass(frozen=True, slots=True)
class PagedWorkspace:
    """What programs that share a row leave for each other. Launches in order may share it."""

    sums: Tensor
    """float32 [B, K, splits, G, D] and more."""
    largest: Tensor
    """float32 [B, K, splits, G] and more: the largest scores."""
    weights: Tensor
    """float32 as `largest`: sums of weights."""
    arrivals: Tensor
    """int32 [B, K] and more; zeros between launches."""

    @classmethod
    def allocate(
        cls, heads: Heads, *, num_row_splits: int, num_rows: int, device: torch.device
    ) -> "PagedWorkspace":
        """Returns a workspace for rows times splits, and rows, up to these."""
        cells = num_row_splits * heads.num_heads

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        arrivals = torch.zeros(num_rows * heads.num_kv_heads, dtype=torch.int32, device=device)
        return cls(floats(cells, heads.head_dim), floats(cells), floats(cells), arrivals)


def attend_paged(
    qkv_BF: Tensor,
    out_BF: Tensor,
    cache: tuple[Tensor, Tensor],
    *,
    heads: Heads,
    rows: PagedRows,
    config: PagedConfig,
    workspace: PagedWorkspace,
    overlap: bool = False,
) -> None:
    """Launches the attention of rows of one token, whose keys and values go into the cache.

    Args:
        qkv_BF: [B, (N + 2 K) D], queries first; neither normalised nor rotated.
        out_BF: [B, N D].
        cache: Keys and values of the layer, as `KvTensors` has them.
        heads: The layer's.
        rows: Where their context lies. Rows at position -1 write nothing.
        config: How they are divided.
        workspace: One that is large enough.
        overlap: Whether the kernel may start before the one in front of it has ended.
    """
    keys, values = cache
    num_rows = rows.positions_B.shape[0]
    grid = (config.max_splits, heads.num_kv_heads, num_rows)
    assert num_rows * config.max_splits * heads.num_heads <= workspace.largest.numel()
    q_norm = qkv_BF if heads.q_norm_D is None else heads.q_norm_D
    k_norm = qkv_BF if heads.k_norm_D is None else heads.k_norm_D
    _paged_kernel[grid](
        qkv_BF, out_BF, keys, values, q_norm, k_norm, heads.cosines, heads.sines,
        rows.positions_B, rows.slots_B, rows.block_tables_SM, rows.block_tables_SM.shape[1],
        workspace.sums, workspace.largest, workspace.weights, workspace.arrivals,
        config.min_split_tokens,
        heads.norm_epsilon, heads.head_dim**-0.5 * LOG2_E,
        HEADS=heads.num_heads,
        KV_HEADS=heads.num_kv_heads,
        ROWS=max(16, next_power_of_2(heads.num_heads // heads.num_kv_heads)),
        D=heads.head_dim,
        BLOCK=keys.shape[1],
        NORM=heads.q_norm_D is not None,
        TOKENS=config.block_tokens,
        STAGES=config.num_stages,
        SPLITS=config.max_splits,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        **launch_options(overlap=overlap),
    )  # fmt: skip


@jit
def _part(
    sums, largest, best, cell, number, num_splits,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Returns what a split has of the sum, zeros where there is no such split."""
    row = tl.arange(0, ROWS)
    is_there = row < tl.where(number < num_splits, GROUP, 0)
    at = (cell + number) * GROUP + row
    score = tl.load(largest + at, mask=is_there, other=-1.0e30, cache_modifier=".cg")
    part = tl.load(
        sums + at[:, None] * D + tl.arange(0, D)[None, :],
        mask=is_there[:, None], other=0.0, cache_modifier=".cg",
    )  # fmt: skip
    return tl.exp2(score - best)[:, None] * part


@jit
def _merge(
    sums, largest, weights, cell, num_splits,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Returns the attention of a row that programs have shared, [ROWS, D], in their order.

    Where few rows are computed, all loads are independent: waiting for one after the other would
    take longer than attending.
    """
    row = tl.arange(0, ROWS)
    is_row = row < GROUP
    split = tl.arange(0, SPLITS)
    at = (cell + split)[None, :] * GROUP + row[:, None]
    mask = is_row[:, None] & (split < num_splits)[None, :]
    scores = tl.load(largest + at, mask=mask, other=-1.0e30, cache_modifier=".cg")
    parts = tl.load(weights + at, mask=mask, other=0.0, cache_modifier=".cg")
    best = tl.max(scores, 1)
    weight = tl.sum(parts * tl.exp2(scores - best[:, None]), 1)
    total = tl.zeros([ROWS, D], tl.float32)
    if SPLITS <= 4:
        # Here many rows keep the device busy, if registers leave room for them.
        for number in range(num_splits):
            total += _part(sums, largest, best, cell, number, num_splits, GROUP, ROWS, D)
    else:
        for number in tl.static_range(SPLITS):
            total += _part(sums, largest, best, cell, number, num_splits, GROUP, ROWS, D)
    return total / tl.where(is_row, weight, 1.0)[:, None]


@jit(
    do_not_specialize=["min_tokens"],
    do_not_specialize_on_alignment=["positions", "slots", "tables"],
)
def _paged_kernel(
    qkv, out, keys, values, q_norm, k_norm, cosines, sines, positions, slots, tables, table_width,
    sums, largest, weights, arrivals, min_tokens, epsilon, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: splits, key-value heads, rows. Scores are to the base of 2."""
    let_next_start(OVERLAP)
    b = tl.program_id(2)
    kv_head = tl.program_id(1)
    split = tl.program_id(0)
    position = tl.load(positions + b)
    # What one program takes, in whole turns; the new token is the last program's.
    num_tokens = position + 1
    share = tl.cdiv(num_tokens, tl.maximum(tl.minimum(tl.cdiv(num_tokens, min_tokens), SPLITS), 1))
    share = tl.maximum(tl.cdiv(share, TOKENS), 1) * TOKENS
    num_splits = tl.cdiv(num_tokens, share)
    if split >= num_splits:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    table = tables + tl.load(slots + b).to(tl.int64) * table_width
    first = split * share
    end = tl.minimum(first + share, position)
    best, weight, total = attend_piece(
        qkv, keys, values, None, None, q_norm, k_norm, cosines, sines, table, b, kv_head,
        position, first, end, split == num_splits - 1, epsilon, scale,
        HEADS, KV_HEADS, ROWS, D, BLOCK, NORM, TOKENS, STAGES, OVERLAP,
    )  # fmt: skip
    places = row_places(out, b, kv_head, HEADS, GROUP, ROWS, D)
    is_row = (tl.arange(0, ROWS) < GROUP)[:, None]
    if num_splits == 1:
        tl.store(places, (total / weight[:, None]).to(out.dtype.element_ty), mask=is_row)
        return
    group = b * KV_HEADS + kv_head
    cell = group * SPLITS
    arrival = arrivals + group
    if leave_part(
        best, weight, total, sums, largest, weights, cell + split, arrival, num_splits,
        GROUP, ROWS, D,
    ):  # fmt: skip
        merged = _merge(sums, largest, weights, cell, num_splits, GROUP, ROWS, D, SPLITS)
        tl.store(places, merged.to(out.dtype.element_ty), mask=is_row)
        tl.store(arrival, 0)
