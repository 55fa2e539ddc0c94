from dataclasses import replace

import pytest
import torch
from torch import Tensor

from antiphon_engine.cuda.kernels.dense_prefill import DenseConfig, attend_dense, can_attend_dense
from antiphon_engine.cuda.kernels.paged_attention import (
    PagedConfig,
    PagedRows,
    PagedWorkspace,
    attend_paged,
)
from antiphon_engine.cuda.kernels.prefill_attention import (
    PrefillConfig,
    PrefillRows,
    attend_rows,
    store_heads,
)
from antiphon_engine.cuda.kernels.spread_attention import (
    SpreadConfig,
    SpreadWorkspace,
    attend_spread,
    plan_rows,
)
from support import cuda_reference as reference
from support.paged_cache import PagedCache

PAGED = PagedConfig(max_splits=4, min_split_tokens=16, block_tokens=16, num_stages=2)
PREFILL = PrefillConfig(tile_rows=32, block_tokens=16, num_stages=2, num_warps=4)
ONE_LOOP = replace(PREFILL, one_loop=True)
DENSE = DenseConfig(tile_rows=32, block_tokens=16, num_stages=2, num_warps=4)


class Cache(PagedCache):
    """A layer whose attention is launched by one kernel or another."""

    def decode(self, qkv: Tensor, positions: list[int], slots: list[int], config: PagedConfig):
        out = self.out(len(positions))
        workspace = PagedWorkspace.allocate(
            self.heads, num_row_splits=16 * 8, num_rows=8, device=self.device
        )
        attend_paged(
            qkv,
            out,
            self.pools,
            heads=self.heads,
            rows=PagedRows(
                positions_B=self.ints(positions),
                slots_B=self.ints(slots),
                block_tables_SM=self.tables,
            ),
            config=config,
            workspace=workspace,
        )
        assert not workspace.arrivals.any()
        return out

    def spread(
        self, qkv: Tensor, positions: list[int], slots: list[int], num_cuts: int, tile_tokens: int
    ) -> Tensor:
        out = self.out(len(positions))
        config = SpreadConfig(
            num_programs=num_cuts * self.heads.num_kv_heads,
            min_tokens=16,
            block_tokens=max(tile_tokens, 16),
            tile_tokens=tile_tokens,
            num_stages=2,
        )
        workspace = SpreadWorkspace.allocate(self.heads, config, num_rows=8, device=self.device)
        rows = PagedRows(
            positions_B=self.ints(positions),
            slots_B=self.ints(slots),
            block_tables_SM=self.tables,
        )
        plan_rows(rows, heads=self.heads, config=config, workspace=workspace)
        attend_spread(
            qkv,
            out,
            self.pools,
            heads=self.heads,
            rows=rows,
            config=config,
            workspace=workspace,
        )
        assert not workspace.arrivals.any()
        return out

    def prefill(self, qkv: Tensor, rows: list[tuple[int, int, int]], config=PREFILL) -> Tensor:
        """Rows are slots, contexts and numbers of tokens."""
        places = [(slot, at) for slot, begin, count in rows for at in range(begin, begin + count)]
        ends = torch.tensor([0, *(count for _, _, count in rows)]).cumsum(0)
        store_heads(
            qkv,
            self.pools,
            heads=self.heads,
            positions_T=self.ints([at for _, at in places]),
            slot_mapping_T=self.places(places),
        )
        out = self.out(len(places))
        attend = attend_dense if isinstance(config, DenseConfig) else attend_rows
        attend(
            qkv,
            out,
            self.pools,
            heads=self.heads,
            rows=PrefillRows(
                row_starts_R1=self.ints(ends.tolist()),
                contexts_R=self.ints([begin for _, begin, _ in rows]),
                slots_R=self.ints([slot for slot, _, _ in rows]),
                block_tables_SM=self.tables,
                num_tokens=len(places),
            ),
            config=config,
        )
        return out


QWEN3 = ((4, 2, 16), {"norm": True})
SEVEN_QUERIES = ((7, 1, 32), {"block_tokens": 32})
ONE_QUERY = ((2, 2, 16), {})
TWO_TILES = ((4, 2, 16), {"block_tokens": 32, "norm": True})
"""In a block."""
TEN_QUERIES = ((10, 1, 64), {})
NARROW = ((4, 2, 32), {"norm": True, "narrow": True})
NARROW_BLOCKS = ((7, 1, 64), {"block_tokens": 32, "narrow": True})


@pytest.mark.parametrize(
    ("heads", "kind", "max_splits"),
    [
        pytest.param(*QWEN3, 1, marks=pytest.mark.device),
        (*SEVEN_QUERIES, 4),
        pytest.param(*ONE_QUERY, 16, marks=pytest.mark.device),
        (*NARROW, 2),
        pytest.param(*NARROW_BLOCKS, 4, marks=pytest.mark.device),
    ],
    ids=("qwen3", "seven_queries", "one_query", "narrow", "narrow_blocks"),
)
def test_decode_is_attention_over_the_cache_and_the_new_token(
    device, dtype, tolerance, heads, kind, max_splits
) -> None:
    cache = Cache(device, dtype, heads, **kind)
    positions, slots = [0, 70, 21], [2, 0, 1]
    qkv = cache.qkv(3)
    q, k, v = reference.prepared_heads(cache.heads, qkv, cache.ints(positions))

    out = cache.decode(qkv, positions, slots, replace(PAGED, max_splits=max_splits))

    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        keys, values = cache.context(slot, position + 1)
        cache.check_stored((keys[position], values[position]), (k[row], v[row]))
        wanted = reference.attention(q[row : row + 1], keys, values, context=position)
        assert reference.relative_error(out[row], wanted.flatten()) < tolerance


@pytest.mark.parametrize(
    ("heads", "kind", "num_cuts", "tile_tokens"),
    [
        (*QWEN3, 3, 0),
        (*TWO_TILES, 3, 16),
        pytest.param(*SEVEN_QUERIES, 7, 0, marks=pytest.mark.device),
        pytest.param(*SEVEN_QUERIES, 7, 32, marks=pytest.mark.device),
        pytest.param(*ONE_QUERY, 1, 0, marks=pytest.mark.device),
        pytest.param(*ONE_QUERY, 1, 16, marks=pytest.mark.device),
        pytest.param(*TEN_QUERIES, 3, 16, marks=pytest.mark.device),
        pytest.param(*QWEN3, 40, 0, marks=pytest.mark.device),
        pytest.param(*NARROW, 3, 0, marks=pytest.mark.device),
        pytest.param(*NARROW_BLOCKS, 7, 0, marks=pytest.mark.device),
    ],
    ids=(
        "some_cuts",
        "tiles",
        "seven_queries",
        "tiles_of_whole_blocks",
        "one_cut",
        "tiles_in_one_cut",
        "tiles_for_ten_queries",
        "as_many_as_there_may_be",
        "narrow",
        "narrow_blocks",
    ),
)
def test_decode_of_planned_pieces_attends_to_context_and_itself(
    device, dtype, tolerance, heads, kind, num_cuts, tile_tokens
) -> None:
    cache = Cache(device, dtype, heads, **kind)
    # A row to be cut, one of its new token alone, padding, the end of a turn and what follows it.
    positions, slots = [100, 0, -1, 15, 16], [0, 1, 3, 2, 3]
    qkv = cache.qkv(5)
    q, k, v = reference.prepared_heads(cache.heads, qkv, cache.ints(positions).clamp(min=0))

    out = cache.spread(qkv, positions, slots, num_cuts, tile_tokens)

    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        if position < 0:
            assert out[row].isnan().all()
            continue
        keys, values = cache.context(slot, position + 1)
        cache.check_stored((keys[position], values[position]), (k[row], v[row]))
        wanted = reference.attention(q[row : row + 1], keys, values, context=position)
        assert reference.relative_error(out[row], wanted.flatten()) < tolerance


def _longest_piece(lengths: list[int], num_cuts: int, min_tokens: int, turn: int) -> int:
    """What a plan makes of rows at most: even parts, or larger ones where they end sooner."""

    def in_turns(num_tokens: int) -> int:
        return -(-max(num_tokens, min_tokens) // turn) * turn

    even = in_turns(-(-sum(lengths) // num_cuts))
    num_pieces = max(num_cuts * max(lengths) // sum(lengths), 1)
    larger = in_turns(-(-max(lengths) // num_pieces))
    pieces = [
        -(-length // -(-length // even)) for length in lengths for _ in range(0, length, even)
    ]
    num_long = sum(2 * -(-piece // turn) * turn > larger for piece in pieces)
    return larger if num_long > num_cuts else even


@pytest.mark.parametrize(
    ("lengths", "num_items"),
    [
        # Half a row is a little more than an even part: three pieces each wouldn't run at once.
        ([81] * 4, 8),
        ([80] * 4, 8),
        # Where others are short, the even parts of a long one end no later.
        ([81, 81, 81, 8], 10),
        # More rows than run at once are cut as before.
        ([40] * 12, 12),
    ],
)
def test_equal_rows_are_cut_into_no_more_pieces_than_run_at_once(
    device, dtype, lengths, num_items
) -> None:
    heads = Cache(device, dtype, (4, 2, 16)).heads
    config = SpreadConfig(num_programs=2 * 9, min_tokens=16, block_tokens=8)
    workspace = SpreadWorkspace.allocate(heads, config, num_rows=len(lengths), device=device)
    numbers = torch.arange(len(lengths), dtype=torch.int32, device=device)
    positions = torch.tensor(lengths, dtype=torch.int32, device=device) - 1
    tables = torch.zeros((len(lengths), 1), dtype=torch.int32, device=device)
    rows = PagedRows(positions_B=positions, slots_B=numbers, block_tables_SM=tables)

    plan_rows(rows, heads=heads, config=config, workspace=workspace)

    assert int((workspace.items[:, 0] >= 0).sum()) == num_items


@pytest.mark.parametrize("num_rows", [3, pytest.param(500, marks=pytest.mark.device)])
def test_plans_cover_every_row_longest_pieces_first(device, dtype, num_rows) -> None:
    heads = Cache(device, dtype, (4, 2, 16)).heads
    config = SpreadConfig(num_programs=2 * 4, min_tokens=32, block_tokens=16)
    workspace = SpreadWorkspace.allocate(heads, config, num_rows=num_rows, device=device)
    workspace.items.fill_(77)
    positions = torch.randint(-1, 300, (num_rows,), dtype=torch.int32, device=device)

    slots = torch.randperm(num_rows, dtype=torch.int32, device=device)
    tables = torch.zeros((num_rows, 1), dtype=torch.int32, device=device)
    rows = PagedRows(positions_B=positions, slots_B=slots, block_tables_SM=tables)

    plan_rows(rows, heads=heads, config=config, workspace=workspace)

    items = workspace.items[:, :5].tolist()
    for row, *_, position, slot, _ in workspace.items.tolist():
        assert row < 0 or (position, slot) == (positions[row], slots[row])
    planned = [item for item in items if item[0] >= 0]
    assert items[len(planned) :] == [[-1, *item[1:]] for item in items[len(planned) :]]
    limit = _longest_piece([position + 1 for position in positions.tolist()], 4, 32, 16)
    shares = []
    for row, position in enumerate(positions.tolist()):
        own = [(at, *item[1:]) for at, item in enumerate(planned) if item[0] == row]
        assert bool(own) == (position >= 0)
        begin = 0
        for at, first, end, first_item, num_pieces in own:
            assert (first, first_item, num_pieces) == (begin, own[0][0], len(own))
            assert at == first_item + own.index((at, first, end, first_item, num_pieces))
            assert end - first <= limit
            begin = end
        assert not own or begin == position
        if own:
            shares.append((own[0][0], own[0][2] if len(own) > 1 else position + 1))
    firsts = [-(-share // 16) for _, share in sorted(shares)]
    assert firsts == sorted(firsts, reverse=True)


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=pytest.mark.device)])
def test_decode_writes_new_tokens_and_nothing_else(device, dtype, narrow) -> None:
    cache = Cache(device, dtype, (4, 2, 32 if narrow else 16), narrow=narrow)
    before = [pool.clone() for pool in cache.pools]

    cache.decode(cache.qkv(2), [-1, 21], [3, 1], PAGED)

    block, offset = int(cache.tables[1, 1]), 5
    for pool, old in zip(cache.pools, before, strict=True):
        differs = pool != old
        if narrow:
            differs = reference.widened_pool(pool) != reference.widened_pool(old)
        changed = differs.flatten(2).any(-1).nonzero().tolist()
        assert changed == [[block, offset]]


@pytest.mark.device
def test_padding_rows_touch_no_other_row(device, dtype) -> None:
    cache = Cache(device, dtype, (4, 2, 16))
    qkv = cache.qkv(3)

    padded = cache.decode(qkv, [-1, 40, -1], [3, 1, 3], PAGED)
    alone = cache.decode(qkv[1:2], [40], [1], PAGED)

    assert torch.equal(padded[1], alone[0])


@pytest.mark.parametrize(
    ("heads", "kind", "config"),
    [
        (*QWEN3, DENSE),
        pytest.param(*QWEN3, PREFILL, marks=pytest.mark.device),
        pytest.param(*SEVEN_QUERIES, ONE_LOOP, marks=pytest.mark.device),
        pytest.param(*SEVEN_QUERIES, DENSE, marks=pytest.mark.device),
        pytest.param(*ONE_QUERY, PREFILL, marks=pytest.mark.device),
        (*NARROW, PREFILL),
        pytest.param(*NARROW_BLOCKS, ONE_LOOP, marks=pytest.mark.device),
    ],
    ids=(
        "dense",
        "qwen3",
        "seven_queries",
        "dense_seven_queries",
        "one_query",
        "narrow",
        "narrow_blocks",
    ),
)
def test_prefill_is_causal_attention_behind_a_context(
    device, dtype, tolerance, heads, kind, config
) -> None:
    cache = Cache(device, dtype, heads, **kind)
    rows = [(2, 0, 5), (0, 20, 1), (3, 0, 0), (1, 30, 19)]
    qkv = cache.qkv(25)
    positions = cache.ints([*range(5), 20, *range(30, 49)])
    q, k, v = reference.prepared_heads(cache.heads, qkv, positions)

    out = cache.prefill(qkv, rows, config)

    first = 0
    for slot, begin, count in rows:
        span = slice(first, first + count)
        keys, values = cache.context(slot, begin + count)
        if count:
            cache.check_stored((keys[begin:], values[begin:]), (k[span], v[span]))
            wanted = reference.attention(q[span], keys, values, context=begin)
            assert reference.relative_error(out[span], wanted.flatten(1)) < tolerance
        first += count


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "head_dim", "is_read_so"),
    [
        (torch.bfloat16, torch.bfloat16, 128, True),
        (torch.bfloat16, torch.bfloat16, 64, True),
        (torch.bfloat16, torch.bfloat16, 256, False),
        (torch.bfloat16, torch.int16, 128, False),
        (torch.float32, torch.float32, 64, False),
    ],
)
def test_own_tokens_are_read_in_one_piece_where_that_fits_and_changes_nothing(
    device, dtype, kv_dtype, head_dim, is_read_so
) -> None:
    heads = Cache(device, torch.float32, (2, 1, head_dim)).heads
    pools = (torch.empty(0, dtype=kv_dtype), torch.empty(0, dtype=kv_dtype))

    found = can_attend_dense(heads, torch.empty(0, dtype=dtype), pools, DenseConfig())

    assert found == is_read_so


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=pytest.mark.device)])
def test_cuts_of_a_prompt_and_its_neighbours_change_no_bit(device, dtype, narrow) -> None:
    cache = Cache(device, dtype, (4, 2, 32 if narrow else 16), norm=True, narrow=narrow)
    prompt = cache.qkv(30)
    whole = cache.prefill(prompt.clone(), [(2, 0, 30)], ONE_LOOP)

    first = cache.prefill(torch.cat((cache.qkv(3), prompt[:13])), [(1, 0, 3), (0, 0, 13)], ONE_LOOP)
    second = cache.prefill(prompt[13:29].clone(), [(0, 13, 16)], ONE_LOOP)
    last = cache.prefill(torch.cat((prompt[29:], cache.qkv(2))), [(0, 29, 1), (1, 3, 2)], ONE_LOOP)

    assert torch.equal(torch.cat((first[3:], second, last[:1])), whole)
