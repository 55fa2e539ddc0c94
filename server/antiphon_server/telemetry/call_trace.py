"""One call while it runs, as its trace sees it."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from antiphon_server.telemetry.request_record import CallRecord, SpanPlace
from antiphon_server.trace_context import TraceContext


class CallTrace:
    """A call from its begin to its end. Used on one event loop."""

    def __init__(
        self,
        method: str,
        came_with: TraceContext,
        *,
        place: SpanPlace | None,
        request_id: str,
        clock_ns: Callable[[], int],
    ) -> None:
        """Begins it.

        Args:
            method: `antiphon.v1.Service/Method`.
            came_with: The trace context that its caller sent.
            place: Of its span; None: it has none.
            request_id: Its id.
            clock_ns: The monotonic clock.
        """
        self.method: Final = method
        self.place: Final = place
        self.request_id: Final = request_id
        self.tenant = ""
        self.peer = ""
        self.is_kept = False
        """Whether something inside of it is told although it was not sampled."""
        self.has_logged = False
        """Whether the log has a line of a request of it that has ended."""
        self.started_ns: Final = clock_ns()
        self._came_with = came_with
        self._clock_ns = clock_ns

    @property
    def inner(self) -> TraceContext:
        """What is done inside of it is a part of."""
        if self.place is None:
            return self._came_with
        return TraceContext(traceparent=self.place.traceparent, tracestate=self.place.tracestate)

    def record(self, code: str, reason: str, *, wall_offset_ns: int) -> CallRecord:
        """Returns what is known of it now that it ends.

        Args:
            code: The gRPC status by its name.
            reason: An ErrorReason, where it failed by one.
            wall_offset_ns: What the monotonic clock lacks to the time since 1970.
        """
        return CallRecord(
            method=self.method,
            place=self.place,
            wall_offset_ns=wall_offset_ns,
            started_ns=self.started_ns,
            ended_ns=self._clock_ns(),
            code=code,
            reason=reason,
            request_id=self.request_id,
            tenant=self.tenant,
            peer=self.peer,
            is_kept=self.is_kept,
        )


_CALL: Final[ContextVar[CallTrace]] = ContextVar("call_trace")
"""Of the call that the current task runs."""


def note_call(call: CallTrace) -> None:
    """Notes which call the current task runs. Each call has a task of its own."""
    _CALL.set(call)


def current_call() -> CallTrace:
    """Returns the call that the current task runs."""
    return _CALL.get()
