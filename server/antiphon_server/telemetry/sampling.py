"""Which traces are kept: decided by ratio at the start, and at the end for what went wrong."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from antiphon_server.telemetry.request_record import Outcome, RequestRecord, SpanPlace
from antiphon_server.times import NS_PER_S
from antiphon_server.trace_context import TraceContext

_LOW_BITS: Final = 1 << 64


class KeptFor(StrEnum):
    """Why something is told that was not sampled at its start."""

    ERROR = "error"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSampling:
    """The decision at the start. Every server that has the same ratio decides alike for a trace."""

    follows_parent: bool = True
    """Whether a parent's decision holds."""
    ratio: float = 1.0
    """Of the traces that are decided here, from 0 to 1."""

    def keeps(self, context: TraceContext, trace_id: str) -> bool:
        """Whether a span is kept.

        Args:
            context: Its parent's; empty: it is a root.
            trace_id: Its trace's, 32 hexadecimal digits.
        """
        if self.follows_parent and context.traceparent:
            return context.is_sampled
        return int(trace_id[16:], 16) < round(self.ratio * _LOW_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSampling:
    """The decision at the end, on what was not sampled at the start."""

    slow_first_token_s: float = 0.0
    """A request that waited longer for its first token is slow; 0: none is."""

    def reason(self, record: RequestRecord) -> KeptFor | None:
        """Returns why a request is kept in any case; None: it isn't."""
        if record.outcome is Outcome.FAILED:
            return KeptFor.ERROR
        if not self.slow_first_token_s:
            return None
        first_ns = record.facts.first_token_ns or record.ended_ns
        is_slow = first_ns - record.received_ns > self.slow_first_token_s * NS_PER_S
        return KeptFor.SLOW if is_slow else None


class SpanPlaces:
    """Gives spans their places in traces."""

    def __init__(
        self, sampling: HeadSampling, *, draw_hex: Callable[[int], str] = secrets.token_hex
    ) -> None:
        """Sets how it is decided, and what draws so many bytes as hexadecimal digits."""
        self._sampling = sampling
        self._draw_hex = draw_hex

    def begin(self, context: TraceContext) -> SpanPlace:
        """Returns the place of a new span below another, or of a root where there is none."""
        trace_id = context.trace_id or self._draw_hex(16)
        return SpanPlace(
            trace_id=trace_id,
            span_id=self._draw_hex(8),
            parent_id=context.span_id,
            is_sampled=self._sampling.keeps(context, trace_id),
            tracestate=context.tracestate,
        )
