"""Attention as a start divides it among programs, captured over one step's rows and replayed.

On devices alone: the interpreter would take minutes for what these divisions are meant for.
"""

import pytest
import torch
from torch import Tensor

from antiphon_engine.cuda.graphs import CudaRecorder
from antiphon_engine.cuda.kernels.dense_prefill import DenseConfig, can_attend_dense
from antiphon_engine.cuda.step_attention import AttentionMaker
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows
from antiphon_engine.cuda.triton_attention import TritonBackend, TritonOptions
from support import cuda_reference as reference
from support.paged_cache import PagedCache

pytestmark = pytest.mark.device

BLOCK_TOKENS, NUM_BLOCKS = 32, 40
LONGEST = BLOCK_TOKENS * NUM_BLOCKS
CHUNKS = ((20, 0, 300), (21, 200, 257), (22, 64, 1), (23, 0, 128), (24, 1000, 130))
"""Slots, contexts and new tokens: with and without whole blocks of their own, and of contexts."""
NUM_CHUNK_ROWS, NUM_CHUNK_TOKENS = 6, 1024
"""Of what is captured: there is padding."""


@pytest.fixture(
    params=[(64, False, 32), (64, True, 0), (128, False, 0), (128, False, 32), (128, True, 0)],
    ids=("64", "64_narrow", "128_untiled", "128", "128_narrow"),
)
def kind(request) -> tuple[int, bool, int]:
    """Features of a head, whether the cache has 8-bit floats, tokens of the tiles it comes in."""
    return request.param


class Served:
    """A layer and what attends to it; all that a step brings lies in memory that stays."""

    def __init__(
        self, device: torch.device, kind: tuple[int, bool, int], *, num_slots: int
    ) -> None:
        head_dim, narrow, tile_tokens = kind
        self.cache = PagedCache(
            device, torch.bfloat16, (8, 2, head_dim), block_tokens=BLOCK_TOKENS, norm=True,
            narrow=narrow, num_slots=num_slots, num_blocks=NUM_BLOCKS,
        )  # fmt: skip
        options = TritonOptions(
            is_fixed=False, overlap=False, is_narrow=narrow, tile_tokens=tile_tokens
        )
        own = TritonBackend.allocate(self.cache.heads, options, max_rows=num_slots, device=device)
        self.maker = AttentionMaker.allocate(
            [own], max_rows=num_slots, is_fixed=False, device=device
        )

    def ints(self, size: int, value: int) -> Tensor:
        return torch.full((size,), value, dtype=torch.int32, device=self.cache.device)

    def check(self, projected: Tensor, out: Tensor, slot: int, context: int) -> None:
        """Compares the output of a row's new tokens with attention to what the cache holds now."""
        cache, count = self.cache, len(projected)
        positions = cache.ints(list(range(context, context + count)))
        q, k, v = reference.prepared_heads(cache.heads, projected, positions)
        keys, values = cache.context(slot, context + count)
        cache.check_stored((keys[context:], values[context:]), (k, v))
        wanted = reference.attention(q, keys, values, context=context)
        assert reference.relative_error(out, wanted.flatten(1)) < 1e-2


@pytest.mark.parametrize("num_rows", [7, 12, 300])
def test_replayed_decodes_attend_to_the_rows_that_memory_holds(device, kind, num_rows) -> None:
    served = Served(device, kind, num_slots=num_rows)
    cache = served.cache
    projected, out = cache.qkv(num_rows), cache.out(num_rows)
    rows = DecodeRows(
        input_ids_B=served.ints(num_rows, 0),
        positions_B=served.ints(num_rows, -1),
        slots_B=served.ints(num_rows, 0),
        block_tables_SM=cache.tables,
        logits_BV=torch.empty(0, device=device),
    )

    def launch() -> None:
        attention = served.maker.for_decode(rows, BLOCK_TOKENS)
        attention.attend(cache.heads, cache.pools, projected, out)

    replay = CudaRecorder().record(launch)
    assert out.isnan().all()
    positions = torch.randint(-1, LONGEST, (num_rows,)).tolist()
    positions[:5] = [0, 255, -1, LONGEST - 1, 64]
    slots = torch.randperm(num_rows).tolist()

    for _ in range(2):
        rows.positions_B.copy_(cache.ints(positions))
        rows.slots_B.copy_(cache.ints(slots))
        out.fill_(float("nan"))
        replay()

        for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
            if position < 0:
                assert out[row].isnan().all()
            else:
                served.check(projected[row : row + 1], out[row : row + 1], slot, position)
        positions.reverse()


@pytest.mark.parametrize("num_decode_rows", [8, 16])
def test_replayed_steps_with_prompts_attend_to_the_rows_that_memory_holds(
    device, kind, num_decode_rows
) -> None:
    served = Served(device, kind, num_slots=25)
    cache = served.cache
    num_rows, num_tokens = num_decode_rows + NUM_CHUNK_ROWS, num_decode_rows + NUM_CHUNK_TOKENS
    projected, out = cache.qkv(num_tokens), cache.out(num_tokens)
    assert can_attend_dense(cache.heads, projected, cache.pools, DenseConfig()) != cache.narrow
    before = projected.clone()
    starts = list(range(num_decode_rows))
    rows = MixedRows(
        input_ids_T=served.ints(num_tokens, 0),
        positions_T=cache.ints([-1] * num_decode_rows + [0] * NUM_CHUNK_TOKENS),
        slot_mapping_T=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        row_starts_R1=cache.ints(starts + [num_decode_rows] * (NUM_CHUNK_ROWS + 1)),
        contexts_R=served.ints(num_rows, 0),
        slots_R=served.ints(num_rows, 0),
        block_tables_SM=cache.tables,
        num_decode_rows=num_decode_rows,
    )

    def launch() -> None:
        served.maker.for_rows(rows).attend(cache.heads, cache.pools, projected, out)

    replay = CudaRecorder().record(launch)
    decodes = [(slot, 150 * slot) for slot in range(num_decode_rows - 3)]
    lay_out(rows, cache, decodes)
    projected.copy_(before)
    replay()

    for row, (slot, position) in enumerate(decodes):
        served.check(before[row : row + 1], out[row : row + 1], slot, position % LONGEST)
    first = num_decode_rows
    for slot, context, count in CHUNKS:
        span = slice(first, first + count)
        served.check(before[span], out[span], slot, context)
        first += count


def lay_out(rows: MixedRows, cache: PagedCache, decodes: list[tuple[int, int]]) -> None:
    """Puts decodes (slots and positions) and CHUNKS where a step's rows are read, with padding."""
    first = rows.num_decode_rows
    places = [(slot, position % LONGEST) for slot, position in decodes]
    new = [(slot, at) for slot, begin, count in CHUNKS for at in range(begin, begin + count)]
    for begin, some in ((0, places), (first, new)):
        span = slice(begin, begin + len(some))
        rows.positions_T[span] = cache.ints([at for _, at in some])
        rows.slot_mapping_T[span] = cache.places(some)
    starts = first + torch.tensor([0, *(count for _, _, count in CHUNKS)]).cumsum(0)
    rows.row_starts_R1[first : first + len(starts)] = starts.int().to(cache.device)
    rows.row_starts_R1[first + len(starts) :] = int(starts[-1])
    behind = slice(first, first + len(CHUNKS))
    rows.contexts_R[: len(places)] = cache.ints([at for _, at in places])
    rows.slots_R[: len(places)] = cache.ints([slot for slot, _ in places])
    rows.contexts_R[behind] = cache.ints([context for _, context, _ in CHUNKS])
    rows.slots_R[behind] = cache.ints([slot for slot, _, _ in CHUNKS])
