"""Values that settings of a small core are drawn from, most often those that meet in practice."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from support.core_values import CoreShape

Value = TypeVar("Value")
Choose = Callable[[Sequence[Value]], Value]
"""Picks one of several: at random, or as Hypothesis likes."""


def plain_shape(choose: Choose) -> CoreShape:
    """Settings under which plain rules foretell every admission and every reuse."""
    block_tokens = choose((2, 3, 4))
    return CoreShape(**_sizes(choose, block_tokens), **_plain())


def any_shape(choose: Choose) -> CoreShape:
    """Every setting that the core has."""
    block_tokens = choose((2, 2, 3, 4))
    num_host_blocks = choose((0, 0, 1, 3, 6, 12))
    return CoreShape(
        **_sizes(choose, block_tokens),
        partial_reuse=choose((True, True, True, False)),
        prefix_deferral=choose((True, True, True, False)),
        capacity_policy=choose(
            ("guaranteed_no_evict", "max_utilization", "max_utilization", "static_batch")
        ),
        chunk_policy=choose(("first_come_first_served", "equal_progress")),
        watermark_blocks=choose((-1, 0, 1)),
        cooldown_steps=choose((0, 1, 8)),
        bypass_requests=choose((0, 1, 2, 8)),
        bypass_steps=choose((0, 1, 4, 256)),
        run_ahead=choose((0, 1, 1, 2)),
        num_host_blocks=num_host_blocks,
        max_step_copies=choose((0, 1, 2)) if num_host_blocks else 0,
        offload_min_hits=choose((0, 0, 0, 1)),
        offload_min_priority=choose((0, 0, 0, 50)),
        onload_block_cost_tokens=choose((0, 0, 0, 3)),
        num_kv_events=choose((0, 4, 64)),
        max_sessions=choose((1, 2, 64)),
        pause_every=choose((0, 0, 0, 0, 1, 2, 5)),
        miss_every=choose((0, 0, 0, 0, 2, 3)),
        fail_host_allocation_every=choose((0, 0, 2)),
    )


def _sizes(choose: Choose, block_tokens: int) -> dict[str, int | bool]:
    return {
        "num_blocks": choose(range(5, 14)),
        "block_tokens": block_tokens,
        "max_rows": choose((1, 2, 3, 4)),
        "max_step_tokens": choose(range(block_tokens, 13)),
        "max_context_tokens": choose(range(8, 25)),
        "max_requests": choose(range(2, 9)),
        "chunk_tokens": choose((0, 0, block_tokens, block_tokens + 1, 2 * block_tokens)),
        "prefix_reuse": choose((True, True, True, True, False)),
    }


def _plain() -> dict[str, int | bool]:
    return {"partial_reuse": False, "prefix_deferral": False, "bypass_requests": 0}
