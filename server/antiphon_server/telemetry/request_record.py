"""What is known of a request, or of a call, once it has ended. Spans, metrics and logs read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from antiphon_server.request_facts import RequestFacts

AttributeValue = str | bool | int | float | tuple[str, ...]


class RequestKind(StrEnum):
    """How a request came."""

    UNARY = "unary"
    STREAM = "stream"
    MULTIPLEXED = "multiplexed"
    TURN = "turn"
    APPENDED_TURN = "appended_turn"
    """A turn that adds items and generates nothing."""


class StageKind(StrEnum):
    """Work of the front end that a request waited for."""

    CONSTRAINT_CHECK = "constraint.check"
    RENDER = "render"
    TOOL_PARSE = "tool.parse"
    STORE_WRITE = "store.write"


class RequestEventKind(StrEnum):
    """What happened to a request at an instant."""

    RECOVERED = "recovered"
    """A server after the one that took the turn in went on with it."""
    ENGINE_LOST = "engine_lost"
    RESUMED = "resumed"
    """It went on, in another engine."""
    INTERRUPTED = "interrupted"
    """Another turn of the session stopped it."""


class Outcome(StrEnum):
    """How a request or a call ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """By its caller, by another turn, or because its caller left."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlace:
    """Where a span stands in a trace. Ids are lower-case hexadecimal digits."""

    trace_id: str
    """32 digits."""
    span_id: str
    """16 digits."""
    parent_id: str = ""
    """16 digits; empty: it is its trace's root."""
    is_sampled: bool = True
    """As decided at its start."""
    tracestate: str = ""

    @property
    def traceparent(self) -> str:
        """The W3C trace context of what is done inside of the span."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


class LinkKind(StrEnum):
    """Why a span points to another."""

    PREVIOUS_TURN = "previous_turn"
    STREAM = "stream"
    """The call that brought a turn whose parent is elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLink:
    """A span that another points to."""

    kind: LinkKind
    traceparent: str
    """W3C trace context, readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A piece of work. Instants are on the monotonic clock."""

    kind: StageKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """Something that happened. The instant is on the monotonic clock."""

    kind: RequestEventKind
    at_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What of the generation's settings is told. None: not set."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What was said, cut to size; kept only where the server was told to."""

    input: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request or a turn that has ended, whether or not it ran. Instants are monotonic ns."""

    kind: RequestKind
    place: SpanPlace | None = None
    """Of the request's own span; None: nothing is traced."""
    kept_for: str = ""
    """Why it is told although it was not sampled, a KeptFor; empty: it isn't, or it was."""
    links: tuple[SpanLink, ...] = ()
    wall_offset_ns: int
    """To be added to an instant to have it since 1970."""
    received_ns: int
    ended_ns: int
    model: str = ""
    """`models/{model}`, one that is served; empty: the request named none of those."""
    is_chat: bool = True
    """Whether a conversation was asked about, not a text or tokens."""
    tenant: str = ""
    request_id: str = ""
    """The call's, as in its trailing metadata."""
    session: str = ""
    """`sessions/{session}`; empty: none."""
    turn: str = ""
    """`sessions/{session}/turns/{turn}`; empty: none."""
    epoch: int = 0
    is_recovered: bool = False
    """Whether an earlier server took the turn in."""
    outcome: Outcome
    failure_reason: str = ""
    """An ErrorReason; empty: it did not fail."""
    finish_reasons: tuple[str, ...] = ()
    """One for each output that ended, as the contract names them without their prefix."""
    num_outputs: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    """Of all outputs."""
    output_sizes: tuple[int, ...] = ()
    """Tokens of each output; empty: it did not run."""
    reasoning_tokens: int = 0
    num_tool_calls: int = 0
    constraint: str = ""
    """The kind of constraint; empty: none."""
    facts: RequestFacts = field(default_factory=RequestFacts)
    """The engine's. Not changed any more."""
    stages: tuple[Stage, ...] = ()
    events: tuple[RequestEvent, ...] = ()
    content: Content | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call that has ended. Instants are monotonic ns."""

    method: str
    """`antiphon.v1.Service/Method`, one that is served, or what stands for all others."""
    place: SpanPlace | None = None
    wall_offset_ns: int
    started_ns: int
    ended_ns: int
    code: str
    """The gRPC status as it stands in the protocol's documents, such as CANCELLED."""
    reason: str = ""
    """An ErrorReason; empty: it did not fail by one."""
    request_id: str = ""
    tenant: str = ""
    peer: str = ""
    """As gRPC names it."""
    is_kept: bool = False
    """Whether something inside of it is told although it was not sampled."""
