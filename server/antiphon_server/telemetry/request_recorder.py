"""Collects what a request's record says, from its receipt to its end."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from antiphon.v1.types_pb2 import FinishReason

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.generation import Generation
from antiphon_server.generation_spec import GenerationSpec
from antiphon_server.telemetry.call_trace import CallTrace
from antiphon_server.telemetry.request_record import (
    AttributeValue,
    Content,
    LinkKind,
    Outcome,
    RequestEvent,
    RequestEventKind,
    RequestKind,
    RequestRecord,
    Sampling,
    SpanLink,
    SpanPlace,
    Stage,
    StageKind,
)
from antiphon_server.trace_context import TraceContext

MAX_STAGES: Final = 64
MAX_EVENTS: Final = 64
"""What a request tells of either; later ones are left out."""
_PREFIX: Final = "FINISH_REASON_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentCapture:
    """Whether what users say is a part of records, and how much of it."""

    is_on: bool = False
    max_bytes: int = 0
    """Of an input, and of an output."""

    def cut(self, text: str) -> str:
        """Returns as much of a text's start as is kept."""
        # A character has a byte or more, so the rest need not be encoded.
        start = text[: self.max_bytes].encode("utf-8", errors="replace")
        return start[: self.max_bytes].decode("utf-8", errors="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStart:
    """What is known of a request at its receipt."""

    kind: RequestKind
    received_ns: int
    """On the monotonic clock."""
    context: TraceContext = field(default_factory=TraceContext)
    """What it is a part of."""
    call: CallTrace | None = None
    """What brought it; None: an earlier server took it in."""
    is_own_context: bool = False
    """Whether the context is the request's own and not that of its call."""
    model: str = ""
    is_chat: bool = True
    tenant: str = ""
    session: str = ""
    turn: str = ""
    epoch: int = 0
    is_recovered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderTerms:
    """What all recorders share."""

    tell: Callable[[RequestRecord], RequestRecord] | None = None
    """Gets the record, and returns it as it was told; None: nobody wants it."""
    wall_offset_ns: int = 0
    clock_ns: Callable[[], int]
    capture: ContentCapture = field(default_factory=ContentCapture)
    is_logged: bool = False
    """Whether the log tells of the request."""


_UNHEARD: Final = RecorderTerms(clock_ns=time.monotonic_ns)


class RequestRecorder:
    """What is known of one request so far. Used on one event loop.

    Ended once, by `end` or as a context manager; what comes later changes nothing.
    """

    def __init__(
        self, start: RequestStart, *, place: SpanPlace | None, terms: RecorderTerms
    ) -> None:
        """Begins a record."""
        self.place: Final = place
        self._start = start
        self._terms = terms
        self._model = start.model
        self._links: list[SpanLink] = []
        self._stages: list[Stage] = []
        self._events: list[RequestEvent] = []
        self._spec: GenerationSpec | None = None
        self._generation: Generation | None = None
        self._input = ""
        self._has_ended = terms.tell is None
        if place is not None and start.call is not None and start.call.place is not None:
            self._link_stream(start, start.call.place)

    @property
    def context(self) -> TraceContext:
        """What is done for the request is a part of."""
        if self.place is None:
            return self._start.context
        return TraceContext(traceparent=self.place.traceparent, tracestate=self.place.tracestate)

    @property
    def traceparent(self) -> str:
        """Of the request's own span; empty: it has none."""
        return self.place.traceparent if self.place is not None else ""

    @property
    def trace_id(self) -> str:
        """Of a trace that is sampled; empty: there is none."""
        return self.context.trace_id if self.context.is_sampled else ""

    @contextlib.contextmanager
    def stage(self, kind: StageKind, **attributes: AttributeValue) -> Iterator[None]:
        """Notes that what is done inside took its time, however it ends."""
        start_ns = self._terms.clock_ns()
        try:
            yield
        finally:
            self.add_stage(kind, start_ns, **attributes)

    def constraint_check(self, *, is_asked: bool) -> AbstractContextManager[None]:
        """Notes the check of a constraint, where there is one to check."""
        return (
            self.stage(StageKind.CONSTRAINT_CHECK, checked="constraint")
            if is_asked
            else contextlib.nullcontext()
        )

    def add_stage(self, kind: StageKind, start_ns: int, **attributes: AttributeValue) -> None:
        """Notes that something took from an instant on the monotonic clock to now."""
        if not self._has_ended and len(self._stages) < MAX_STAGES:
            stage = Stage(
                kind=kind, start_ns=start_ns, end_ns=self._terms.clock_ns(), attributes=attributes
            )
            self._stages.append(stage)

    def note(self, kind: RequestEventKind, **attributes: AttributeValue) -> None:
        """Notes that something happens now."""
        if not self._has_ended and len(self._events) < MAX_EVENTS:
            event = RequestEvent(kind=kind, at_ns=self._terms.clock_ns(), attributes=attributes)
            self._events.append(event)

    def note_model(self, name: str) -> None:
        """Says which of the served models it is for, by its resource name."""
        self._model = name

    def note_previous_turn(self, traceparent: str) -> None:
        """Points to the span of the turn before it; empty: it has none."""
        if self.place is not None and traceparent:
            self._links.append(SpanLink(kind=LinkKind.PREVIOUS_TURN, traceparent=traceparent))

    def note_input(self, text: Callable[[], str]) -> None:
        """Keeps what was asked, where content is kept."""
        if self._terms.capture.is_on and not self._has_ended:
            self._input = self._terms.capture.cut(text())

    def follow(self, generation: Generation, spec: GenerationSpec) -> None:
        """Tells of a generation, as it is at the request's end."""
        self._generation = generation
        self._spec = spec

    def end(self, outcome: Outcome, *, reason: str = "") -> None:
        """Tells the record. Idempotent.

        Args:
            outcome: How the request ended.
            reason: An ErrorReason, where it failed.
        """
        if self._has_ended or self._terms.tell is None:
            return
        self._has_ended = True
        told = self._terms.tell(self._record(outcome, reason))
        if self._start.call is not None and self._terms.is_logged:
            self._start.call.has_logged = True
        if told.kept_for and self._start.call is not None and self.place is not None:
            same_trace = self._start.call.place
            if same_trace is not None and same_trace.trace_id == self.place.trace_id:
                self._start.call.is_kept = True
        self._generation = self._spec = None

    def drop(self) -> None:
        """Tells nothing. Idempotent."""
        self._has_ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it as what was done inside ended."""
        if isinstance(error, AntiphonError):
            self.end(Outcome.FAILED, reason=error.reason.value)
        elif isinstance(error, Exception):
            self.end(Outcome.FAILED, reason="INTERNAL")
        elif error is not None or not self._has_whole_output:
            self.end(Outcome.CANCELLED)
        else:
            self.end(Outcome.COMPLETED)

    @property
    def _has_whole_output(self) -> bool:
        """Whether it ended by itself; one whose caller left just stops."""
        generation = self._generation
        return generation is not None and all(
            record.finished and record.finish_reason != FinishReason.FINISH_REASON_CANCELLED
            for record in generation.outputs
        )

    def _link_stream(self, start: RequestStart, stream: SpanPlace) -> None:
        if start.is_own_context:
            self._links.append(SpanLink(kind=LinkKind.STREAM, traceparent=stream.traceparent))

    def _record(self, outcome: Outcome, reason: str) -> RequestRecord:
        start = self._start
        record = RequestRecord(
            kind=start.kind,
            place=self.place,
            links=tuple(self._links),
            wall_offset_ns=self._terms.wall_offset_ns,
            received_ns=start.received_ns,
            ended_ns=self._terms.clock_ns(),
            model=self._model,
            is_chat=start.is_chat,
            tenant=start.tenant,
            request_id=start.call.request_id if start.call else "",
            session=start.session,
            turn=start.turn,
            epoch=start.epoch,
            is_recovered=start.is_recovered,
            outcome=outcome,
            failure_reason=reason,
            stages=tuple(self._stages),
            events=tuple(self._events),
        )
        return self._with_generation(record)

    def _with_generation(self, record: RequestRecord) -> RequestRecord:
        generation, spec = self._generation, self._spec
        if self._terms.capture.is_on:
            outputs = generation.outputs if generation else ()
            text = self._terms.capture.cut("\n".join(output.text for output in outputs))
            record = replace(record, content=Content(input=self._input, output=text))
        if generation is None or spec is None:
            return record
        usage = generation.usage
        return replace(
            record,
            finish_reasons=tuple(
                FinishReason.Name(output.finish_reason).removeprefix(_PREFIX)
                for output in generation.outputs
                if output.finished
            ),
            num_outputs=spec.num_outputs,
            sampling=_sampling_of(spec),
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            output_tokens=usage.output_tokens,
            output_sizes=tuple(len(output.token_ids) for output in generation.outputs),
            reasoning_tokens=usage.reasoning_tokens,
            num_tool_calls=sum(len(output.tool_calls) for output in generation.outputs),
            constraint=spec.constraint.request.kind.value if spec.constraint else "",
            facts=replace(generation.facts),
            stages=(*record.stages, *generation.stages)[:MAX_STAGES],
        )


def no_recorder() -> RequestRecorder:
    """Returns one that nobody hears of."""
    start = RequestStart(kind=RequestKind.TURN, received_ns=0)
    return RequestRecorder(start, place=None, terms=_UNHEARD)


def _sampling_of(spec: GenerationSpec) -> Sampling:
    sampling, stop = spec.config.sampling, spec.config.stop
    return Sampling(
        max_output_tokens=stop.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
    )
