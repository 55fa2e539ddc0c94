"""What loads told of their tokens, as figures: while all streams lived, and over the whole run."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

_SETTLE_NS = 1_000_000_000
"""What the start of the last stream may leave behind, which isn't counted with those that live."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one load told at its end. Instants are on one clock for all."""

    num_messages: int
    cpu_s: float
    wait_s: float
    """How long it was ready, and others had the cores: all delays have their part of that."""
    all_live_ns: tuple[int, int]
    """From the last stream's first token to the first stream's last one."""
    made_ns: Sequence[int]
    """When the step ended that brought each token."""
    late_ns: Sequence[int]
    """How much later it was there, of each."""


def read_told(answer: bytes) -> Told:
    """Reads the last line that a load printed."""
    fields = json.loads(answer)
    return Told(**{**fields, "all_live_ns": tuple(fields["all_live_ns"])})


def delivery_figures(
    told: Sequence[Told], slow_spans: Sequence[tuple[int, int]] = ()
) -> dict[str, float]:
    """Returns how late tokens came.

    The bar is for streams that live: all begin at once and so end at once, and neither happens to
    a server that has so many. How late tokens are meanwhile is told beside it, and so is the worst
    second of the time between, which tells one stall from a server that is full; and those tokens
    alone that were not under way while the machine itself was slow.

    Args:
        told: By all loads.
        slow_spans: When the machine was slow, in order.
    """
    begin_ns = max(each.all_live_ns[0] for each in told)
    live_ns = begin_ns + _SETTLE_NS
    end_ns = min(each.all_live_ns[1] for each in told)
    assert live_ns < end_ns, "the streams are too short for all of them to live at a time"
    tokens = [pair for each in told for pair in zip(each.made_ns, each.late_ns, strict=True)]
    seconds: dict[int, list[int]] = {}
    for made_ns, late_ns in tokens:
        if live_ns <= made_ns < end_ns:
            seconds.setdefault((made_ns - live_ns) // _NS_PER_S, []).append(late_ns)
    while_live = [late_ns for second in seconds.values() for late_ns in second]
    at_pace = [
        late_ns
        for made_ns, late_ns in tokens
        if live_ns <= made_ns < end_ns and not _touches(slow_spans, made_ns, made_ns + late_ns)
    ]
    slow = [(max(live_ns, start), min(end_ns, end)) for start, end in slow_spans]
    slow_ns = [end - start for start, end in slow if start < end]
    return {
        "p50_delivery_ms": _quantile_ms(while_live, 0.5),
        "p99_delivery_ms": _quantile_ms(while_live, 0.99),
        "worst_second_p99_ms": max(_quantile_ms(second, 0.99) for second in seconds.values()),
        "p99_at_pace_ms": _quantile_ms(at_pace, 0.99),
        "machine_slow_share": round(sum(slow_ns) / (end_ns - live_ns), 3),
        "machine_slow_longest_ms": round(max(slow_ns, default=0) / _NS_PER_MS, 1),
        "p99_starting_ms": _quantile_ms([late for made, late in tokens if made < live_ns], 0.99),
        "p99_ending_ms": _quantile_ms([late for made, late in tokens if made >= end_ns], 0.99),
        "start_s": round((begin_ns - min(made_ns for made_ns, _ in tokens)) / _NS_PER_S, 1),
        "live_s": round((end_ns - live_ns) / _NS_PER_S, 1),
    }


def _touches(spans: Sequence[tuple[int, int]], start_ns: int, end_ns: int) -> bool:
    """Whether a time has anything of spans that stand in order."""
    first = bisect_left(spans, start_ns, key=lambda span: span[1])
    return first < len(spans) and spans[first][0] <= end_ns


def _quantile_ms(late_ns: Sequence[int], share: float) -> float:
    """Returns the delay that a share of the tokens keeps below; 0 of no tokens."""
    if not late_ns:
        return 0.0
    ordered = sorted(late_ns)
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] / _NS_PER_MS, 1)
