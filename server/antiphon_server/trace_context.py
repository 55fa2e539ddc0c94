"""W3C trace contexts: which trace a request is a part of."""

import re
from dataclasses import dataclass
from typing import Final

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1
_MAX_TRACESTATE_CHARS: Final = 512
"""What the recommendation asks everyone to pass on; longer ones may be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A place in a trace; empty: none."""

    traceparent: str = ""
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """The trace's, 32 hexadecimal digits; empty: there is none."""
        match = _TRACEPARENT.fullmatch(self.traceparent)
        return match[1] if match else ""

    @property
    def span_id(self) -> str:
        """The parent's, 16 hexadecimal digits; empty: there is none."""
        match = _TRACEPARENT.fullmatch(self.traceparent)
        return match[2] if match else ""

    @property
    def is_sampled(self) -> bool:
        """Whether the parent is recorded."""
        return bool(trace_id_of(self.traceparent))

    @classmethod
    def read(cls, traceparent: str, tracestate: str = "") -> "TraceContext":
        """Returns what was sent, or none where it is broken: the rule is to go on without."""
        readable = read_traceparent(traceparent)
        kept = tracestate if readable and len(tracestate) <= _MAX_TRACESTATE_CHARS else ""
        return cls(traceparent=readable, tracestate=kept)


def read_traceparent(traceparent: str) -> str:
    """Returns a trace's parent, or nothing where it is broken: the rule is to go on without."""
    match = _TRACEPARENT.fullmatch(traceparent)
    is_valid = (
        match and not traceparent.startswith("ff") and match[1].strip("0") and match[2].strip("0")
    )
    return traceparent if is_valid else ""


def trace_id_of(traceparent: str) -> str:
    """Returns the trace's id; empty where there is none, or it is not sampled."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1] if match and int(match[3], 16) & _SAMPLED else ""
