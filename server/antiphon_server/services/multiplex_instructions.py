"""What a multiplexing caller asks: read from its frames, checked as far as a frame alone allows."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from antiphon.v1.inference_pb2 import GenerateRequest, MultiplexGenerateRequest

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_engine.api.messages import Scope
from antiphon_server.offload import Offload
from antiphon_server.request_preparation import Terms
from antiphon_server.telemetry.call_trace import CallTrace
from antiphon_server.times import check_duration
from antiphon_server.trace_context import TraceContext
from antiphon_server.validation import check_unknown_fields
from antiphon_server.validation_fields import Violations

MAX_CACHE_SCOPE_BYTES: Final = 256

_LARGE_BYTES: Final = 64 << 10
"""Walking over a larger frame would hold the event loop up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """What holds for all requests of a call."""

    tenant: str = ""
    trace: TraceContext
    call: CallTrace | None = None
    """None: nobody hears of it."""
    deadline_ns: int | None = None
    """On the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start this request."""

    tag: int
    request: GenerateRequest
    terms: Terms
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop the request of this tag."""

    tag: int


class InstructionReader:
    """Reads the frames of one call."""

    def __init__(
        self,
        call: CallTerms,
        *,
        offload: Offload,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._call = call
        self._offload = offload
        self._clock_ns = clock_ns

    async def read(self, frame: MultiplexGenerateRequest) -> Start | Cancel:
        """Returns what a frame asks; its time runs from now.

        Raises:
            AntiphonError: it can't be taken.
        """
        received_ns = self._clock_ns()
        size_bytes = frame.ByteSize()
        if size_bytes > _LARGE_BYTES:
            await self._offload.run(check_unknown_fields, frame, "")
        else:
            check_unknown_fields(frame, "")
        kind = frame.WhichOneof("instruction")
        if kind == "generate":
            return Start(
                tag=frame.tag,
                request=frame.generate,
                terms=self._read_terms(frame, received_ns),
                size_bytes=size_bytes,
            )
        if kind == "cancel":
            _check_bare(frame)
            return Cancel(tag=frame.tag)
        raise InvalidRequest(FieldViolation("instruction", "must have generate or cancel set"))

    def _read_terms(self, frame: MultiplexGenerateRequest, received_ns: int) -> Terms:
        size_bytes = len(frame.cache_scope.encode())
        if size_bytes > MAX_CACHE_SCOPE_BYTES:
            raise InvalidRequest(
                FieldViolation(
                    "cache_scope",
                    f"has {size_bytes} bytes; it may have {MAX_CACHE_SCOPE_BYTES} at most",
                )
            )
        deadlines_ns = [] if self._call.deadline_ns is None else [self._call.deadline_ns]
        if frame.HasField("timeout"):
            deadlines_ns.append(received_ns + check_duration(frame.timeout, "timeout"))
        own = TraceContext.read(frame.traceparent, frame.tracestate)
        return Terms(
            scope=Scope(tenant=self._call.tenant, cache_scope=frame.cache_scope),
            received_ns=received_ns,
            deadline_ns=min(deadlines_ns, default=None),
            trace=own if own.traceparent else self._call.trace,
            call=self._call.call,
            has_own_trace=bool(own.traceparent),
            path="generate",
        )


def _check_bare(frame: MultiplexGenerateRequest) -> None:
    """Refuses what says something of a request in a frame that starts none."""
    violations = Violations()
    for field, _ in frame.ListFields():
        if field.name not in ("tag", "cancel"):
            violations.add(field.name, "goes with generate only")
    violations.raise_if_any()
