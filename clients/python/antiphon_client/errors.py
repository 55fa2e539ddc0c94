"""What a server refuses or fails with, as exceptions that carry what it told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field at fault: its path from the request or frame, and what is wrong with it."""

    field: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """All that a server tells of a failure."""

    code: grpc.StatusCode
    reason: str = ""
    """The contract's ErrorReason without its prefix; empty: no Antiphon server answered."""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The figures of `message`, for programs."""
    violations: Sequence[FieldViolation] = ()
    retry_delay_s: float | None = None
    """How long to wait before a retry; None: the server did not ask for one."""
    request_id: str = ""
    """Finds the call in the server's log."""


class ServerError(Exception):
    """A call, a turn or a frame failed. The subclasses go by gRPC status, theirs by reason."""

    def __init__(self, details: ErrorDetails) -> None:
        super().__init__(details.message or details.code.name)
        self.details = details

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status."""
        return self.details.code

    @property
    def reason(self) -> str:
        """The contract's ErrorReason without its prefix; empty: no Antiphon server answered."""
        return self.details.reason

    @property
    def message(self) -> str:
        """What happened, the value, the limit and what to do."""
        return self.details.message

    @property
    def metadata(self) -> Mapping[str, str]:
        """The figures of `message`."""
        return self.details.metadata

    @property
    def violations(self) -> Sequence[FieldViolation]:
        """The fields at fault, for InvalidArgument."""
        return self.details.violations

    @property
    def retry_delay_s(self) -> float | None:
        """How long to wait before a retry; None: the server did not ask for one."""
        return self.details.retry_delay_s


class InvalidArgument(ServerError):  # noqa: N818 - named as the gRPC statuses are, here and below
    """A field of the request is at fault; `violations` name it."""


class NotFound(ServerError):  # noqa: N818
    """No such session, turn or model."""


class AlreadyExists(ServerError):  # noqa: N818
    """The id is taken by something else."""


class Aborted(ServerError):  # noqa: N818
    """The session has changed meanwhile: read it again, then decide."""


class FailedPrecondition(ServerError):  # noqa: N818
    """Not in this state: the session is busy, full or driven by another stream."""


class ResourceExhausted(ServerError):  # noqa: N818
    """Over a quota or a size that no retry helps."""


class Unavailable(ServerError):  # noqa: N818
    """Not now: overloaded, shutting down, or the engine is starting again."""


class NotReachable(Unavailable):
    """No Antiphon server answered at the target."""


class DeadlineExceeded(ServerError):  # noqa: N818
    """It took longer than the caller gave it."""


class Unimplemented(ServerError):  # noqa: N818
    """The server or the model can't do it; `metadata` names the capability."""


class Unauthenticated(ServerError):  # noqa: N818
    """The credential is missing or wrong."""


class Cancelled(ServerError):  # noqa: N818
    """The call was cancelled."""


class InternalError(ServerError):
    """A fault of the server's; `details.request_id` finds it in its log."""


class TurnRestarted(Exception):  # noqa: N818
    """A server lost a part of an answer that was read already, and its new answer is another.

    Reading on gives what follows `kept_text`; what was read behind that no longer holds.

    Attributes:
        turn_id: The turn.
        kept_text: As much of the answer that was read as the new one begins with too.
    """

    def __init__(self, turn_id: str, kept_text: str) -> None:
        super().__init__(
            f"the turn {turn_id} was started again and its answer is another one after"
            f" {len(kept_text)} characters; read on from there"
        )
        self.turn_id = turn_id
        self.kept_text = kept_text
