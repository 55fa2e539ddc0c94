"""How hard the engine is asked to hold on to what a request leaves in its cache."""

from dataclasses import dataclass

DEFAULT_PRIORITY = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionHint:
    """A hint that goes with a request."""

    session: int = 0
    """What the engine knows its session by; 0: it has none."""
    priority: int = DEFAULT_PRIORITY
    """0, first to go, to 100."""
    duration_us: int = 0
    """How long the priority holds without use; 0: for ever."""
