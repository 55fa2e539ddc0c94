"""What the session store keeps, as values."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.v1 import session_pb2

from antiphon_engine.api.messages import TokenLogprobs

QUEUED = session_pb2.Turn.STATE_QUEUED
RUNNING = session_pb2.Turn.STATE_RUNNING
COMPLETED = session_pb2.Turn.STATE_COMPLETED
FAILED = session_pb2.Turn.STATE_FAILED
SUPERSEDED = session_pb2.Turn.STATE_SUPERSEDED


def token_array(token_ids: bytes = b"") -> "array[int]":
    """Returns int32 ids that were stored as bytes."""
    return array("i", token_ids)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What tells sessions apart."""

    tenant: str
    session_id: str

    @property
    def name(self) -> str:
        """Its resource name."""
        return f"sessions/{self.session_id}"

    def turn_name(self, turn_id: str) -> str:
        """The resource name of one of its turns."""
        return f"{self.name}/turns/{turn_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session as it is kept."""

    key: SessionKey
    session: session_pb2.Session
    """All but state, etag, expire_time and residency, which follow from the rest."""
    version: int
    """Counts the changes of the session and its head."""
    create_ns: int
    idle_since_ns: int
    """When its last turn ended or, before the first, when it was created."""
    expire_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """What a turn adds to its session's token log."""

    head_ids: "array[int] | None" = None
    """The prompt up to the first output, rendered for this turn; None: as it was."""
    head_digest: bytes = b""
    """Of the instructions in `head_ids`."""
    added_ids: "array[int]" = field(default_factory=token_array)
    """Prompt ids behind all earlier ones."""
    output_ids: "array[int]" = field(default_factory=token_array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far a turn is that has not ended, for a server that takes it up again."""

    num_attempts: int
    """How often in a row it was begun without getting on."""
    tokens: TurnTokens
    """Its prompt, where ids are kept, and what was generated."""
    logprobs: Sequence[TokenLogprobs] = ()
    """One for each of its output's ids, where they were asked for."""
    num_kept_before: int = 0
    """So many of the output's ids were written before; those here follow them. 0 as it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    """What a turn that has not ended is to do: enough to run it after a restart."""

    request: session_pb2.StartTurn | session_pb2.AppendItems
    """As it came, with the trace context of its stream where it had none of its own."""
    accepted: session_pb2.Session
    """Instructions, tools and defaults as they were in force for it; the defaults are those of the
    session with the turn's own over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """A turn as it is kept."""

    position: int
    """Its place among the session's turns in order of acceptance, from 1."""
    turn_id: str
    generates: bool
    """Whether it asks for an output; otherwise it appends."""
    continues: bool = False
    """Whether it goes on with the answer of the turn before it."""
    fingerprint: bytes
    """Of the request's content: tells a retry from another turn under the same id."""
    turn: session_pb2.Turn
    version: int = 0
    """The session's with this turn as its head; 0: it never was, or that is not known."""
    tokens: TurnTokens = field(default_factory=TurnTokens)
    order: TurnOrder | None = None
    """Kept until it has ended. None also for one that an earlier release took in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Makes a retry of a unary call answer as the first time."""

    tenant: str
    request_id: str
    fingerprint: bytes
    create_ns: int
    answer: session_pb2.Session
    """What the caller is told, and told again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """What a new session shares with another."""

    parent: SessionKey
    position: int
    """Of the last turn to share; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session to create."""

    row: SessionRow
    first_turn: TurnRow | None = None
    fork: Fork | None = None
    receipt: Receipt | None
    max_sessions: int
    """The most that its tenant may have; 0: no limit."""
    max_stored_bytes: int = 0
    """Beyond it its tenant may not keep more; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """A session that goes back in its history."""

    row: SessionRow
    """As it is then."""
    position: int
    """Of the turn that becomes the head; 0: none does."""
    receipt: Receipt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """A page of a tenant's sessions, latest creation first."""

    tenant: str
    labels: Mapping[str, str]
    before: tuple[int, str] | None
    """(create_ns, session id) of the last session of the page before."""
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuery:
    """A page of a session's turns."""

    key: SessionKey
    after_position: int | None
    """Of the last turn of the page before."""
    limit: int
    newest_first: bool
    show_all: bool
    """Whether failed and superseded turns are listed too."""
