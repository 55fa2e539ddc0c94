"""What a captured step does around the model, in a launch each.

Shape suffixes: D changes of the block table, T tokens, R rows, S slots, M blocks of a context.
"""

from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl

from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.cuda.step_edges import StepStart


def begin_step(start: StepStart, tables: DeviceTables) -> None:
    """Launches changes of the block table, and the reading of ids that the plan doesn't know."""
    most_deltas, num_tokens = start.deltas_D3.shape[0], start.input_ids_T.shape[0]
    _begin_kernel[(1,)](
        start.deltas_D3,
        start.num_deltas_1,
        tables.blocks_SM,
        start.input_ids_T,
        start.gather_slots_T,
        tables.last_tokens_S,
        start.known_ids_T,
        num_tokens,
        tables.blocks_SM.shape[1],
        BLOCK=next_power_of_2(max(most_deltas, num_tokens, 32)),
        num_warps=4,
    )


def keep_last_tokens(slots_R: Tensor, tokens_R: Tensor, last_tokens_S: Tensor) -> None:
    """Launches the keeping of a token for each of some slots. All are int32."""
    num_rows = slots_R.shape[0]
    _keep_kernel[(1,)](
        slots_R, tokens_R, last_tokens_S, num_rows, BLOCK=next_power_of_2(max(num_rows, 32))
    )


@jit(
    do_not_specialize=["num_tokens", "num_blocks"],
    do_not_specialize_on_alignment=[
        "deltas",
        "num_deltas",
        "input_ids",
        "gather_slots",
        "known_ids",
    ],
)
def _begin_kernel(
    deltas,
    num_deltas,
    blocks,
    input_ids,
    gather_slots,
    last_tokens,
    known_ids,
    num_tokens,
    num_blocks,
    BLOCK: tl.constexpr,
):
    index = tl.arange(0, BLOCK)
    is_delta = index < tl.load(num_deltas)
    slot = tl.load(deltas + 3 * index, mask=is_delta, other=0).to(tl.int64)
    place = tl.load(deltas + 3 * index + 1, mask=is_delta, other=0)
    block = tl.load(deltas + 3 * index + 2, mask=is_delta, other=0)
    tl.store(blocks + slot * num_blocks + place, block, mask=is_delta)
    is_token = index < num_tokens
    token = tl.load(input_ids + index, mask=is_token, other=0)
    source = tl.load(gather_slots + index, mask=is_token, other=-1)
    last = tl.load(last_tokens + source, mask=is_token & (source >= 0), other=0)
    tl.store(known_ids + index, tl.where(source >= 0, last, token), mask=is_token)


@jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["slots", "tokens"])
def _keep_kernel(slots, tokens, last_tokens, num_rows, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    mask = row < num_rows
    slot = tl.load(slots + row, mask=mask, other=0)
    tl.store(last_tokens + slot, tl.load(tokens + row, mask=mask, other=0), mask=mask)
