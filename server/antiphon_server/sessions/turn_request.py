"""What a caller asks of a turn: read from its frame, checked as far as the frame alone allows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.v1.session_pb2 import AppendItems, HistoryPoint, StartTurn
from antiphon.v1.types_pb2 import GenerationConfig, Item
from google.protobuf.message import Message

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.sessions.cleared_defaults import check_cleared_defaults
from antiphon_server.sessions.names import check_turn_id, parse_turn_name
from antiphon_server.telemetry.call_trace import CallTrace
from antiphon_server.times import check_duration
from antiphon_server.trace_context import TraceContext
from antiphon_server.validation import check_items


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a turn came in."""

    path: str
    """What stands before its fields' names where one is at fault, such as `generate`."""
    frame_id: str = ""
    call: CallTrace | None = None
    """The stream or call, whose trace holds for turns without their own; None: it has gone."""

    @property
    def trace(self) -> TraceContext:
        """What turns are a part of that don't say so themselves."""
        return self.call.inner if self.call is not None else TraceContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn as its caller wants it."""

    path: str
    """What stands before its fields' names where one is at fault, such as `generate`."""
    turn_id: str
    """Empty: the server chooses."""
    generates: bool
    items: tuple[Item, ...]
    fingerprint: bytes
    message: StartTurn | AppendItems
    """As it came, with the trace context of its stream where it had none of its own."""
    config: GenerationConfig = field(default_factory=GenerationConfig)
    expected_head: HistoryPoint | None = None
    rewind_to: HistoryPoint | None = None
    """Where the history goes back to as the turn starts."""
    continues: bool = False
    """Whether to go on with the head's answer."""
    cleared_defaults: tuple[str, ...] = ()
    """Paths in GenerationConfig."""
    rejects_busy: bool = False
    """Whether to fail while another turn runs, instead of waiting."""
    interrupts: bool = False
    """Whether to stop the turns that have not ended, instead of waiting."""
    cancels_on_disconnect: bool = False
    timeout_ns: int | None = None
    """From receipt."""
    trace: TraceContext = field(default_factory=TraceContext)
    """What it is a part of; empty: nothing, or nothing that can be read."""
    has_own_trace: bool = False
    """Whether it said so itself, and not the call that brought it."""
    call: CallTrace | None = None
    """What brought it; None: an earlier server took it in."""
    frame_id: str = ""

    @property
    def trace_id(self) -> str:
        """The trace that it is a part of; empty where there is none or it is not sampled."""
        return self.trace.trace_id if self.trace.is_sampled else ""


def read_start_turn(start: StartTurn, frame: Frame) -> TurnRequest:
    """Reads a turn that generates.

    Raises:
        InvalidRequest: a field is at fault.
        AntiphonError: UNSUPPORTED_FEATURE.
    """
    path = frame.path
    if start.turn_id:
        check_turn_id(start.turn_id, f"{path}.turn_id")
    _check_enum(start.if_busy, StartTurn.IfBusy.values(), f"{path}.if_busy")
    _check_enum(start.on_disconnect, StartTurn.OnDisconnect.values(), f"{path}.on_disconnect")
    check_items(start.items, f"{path}.items")
    if start.continue_answer and start.items:
        description = "must not be set together with items: the answer goes on as it stands"
        raise InvalidRequest(FieldViolation(f"{path}.continue_answer", description))
    check_cleared_defaults(start.clear_defaults, f"{path}.clear_defaults")
    has_timeout = start.HasField("timeout")
    message = StartTurn()
    message.CopyFrom(start)
    if not start.traceparent:
        message.traceparent = frame.trace.traceparent
        message.tracestate = frame.trace.tracestate
    return TurnRequest(
        path=path,
        turn_id=start.turn_id,
        generates=True,
        items=tuple(start.items),
        fingerprint=fingerprint("generate", _content_of(start)),
        message=message,
        config=start.config,
        expected_head=_read_point(
            start.expected_head, f"{path}.expected_head", is_set=start.HasField("expected_head")
        ),
        rewind_to=_read_point(
            start.rewind_to, f"{path}.rewind_to", is_set=start.HasField("rewind_to")
        ),
        continues=start.continue_answer,
        cleared_defaults=tuple(start.clear_defaults.paths),
        rejects_busy=start.if_busy == StartTurn.IF_BUSY_REJECT,
        interrupts=start.if_busy == StartTurn.IF_BUSY_INTERRUPT,
        cancels_on_disconnect=start.on_disconnect == StartTurn.ON_DISCONNECT_CANCEL,
        timeout_ns=check_duration(start.timeout, f"{path}.timeout") if has_timeout else None,
        trace=TraceContext.read(message.traceparent, message.tracestate),
        has_own_trace=bool(start.traceparent),
        call=frame.call,
        frame_id=frame.frame_id,
    )


def read_append(append: AppendItems, frame: Frame) -> TurnRequest:
    """Reads a turn that appends. Raises like `read_start_turn`."""
    path = frame.path
    if append.turn_id:
        check_turn_id(append.turn_id, f"{path}.turn_id")
    if not append.items:
        raise InvalidRequest(FieldViolation(f"{path}.items", "must have at least one item"))
    check_items(append.items, f"{path}.items")
    content = AppendItems(items=append.items)
    if append.HasField("expected_head"):
        content.expected_head.CopyFrom(append.expected_head)
    return TurnRequest(
        path=path,
        turn_id=append.turn_id,
        generates=False,
        items=tuple(append.items),
        fingerprint=fingerprint("append", content),
        message=append,
        expected_head=_read_point(
            append.expected_head, f"{path}.expected_head", is_set=append.HasField("expected_head")
        ),
        trace=frame.trace,
        call=frame.call,
        frame_id=frame.frame_id,
    )


def fingerprint(kind: str, content: Message) -> bytes:
    """Returns what tells a retry from another request."""
    return hashlib.sha256(
        kind.encode() + b"\0" + content.SerializeToString(deterministic=True)
    ).digest()


def _content_of(start: StartTurn) -> StartTurn:
    """Returns what makes a turn the same as another under its id."""
    content = StartTurn()
    content.CopyFrom(start)
    for how in ("turn_id", "if_busy", "on_disconnect", "timeout", "traceparent", "tracestate"):
        content.ClearField(how)
    return content


def _read_point(point: HistoryPoint, path: str, *, is_set: bool) -> HistoryPoint | None:
    """Returns a place in the history, if one is named."""
    if not is_set:
        return None
    check_point(point, path)
    return point


def check_point(point: HistoryPoint, path: str) -> None:
    """Checks that a place in a history is named, not that it is there. Raises InvalidRequest."""
    kind = point.WhichOneof("point")
    if kind is None:
        raise InvalidRequest(FieldViolation(path, "must have turn or start set"))
    if kind == "turn":
        parse_turn_name("", point.turn, f"{path}.turn")


def _check_enum(value: int, known: Sequence[int], path: str) -> None:
    if value not in known:
        raise InvalidRequest(FieldViolation(path, f"is {value}, which this server does not know"))
