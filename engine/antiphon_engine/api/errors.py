"""Errors that users meet. Each has a fixed reason, a word of the contract's ErrorReason."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class ErrorReason(enum.StrEnum):
    """The contract's ErrorReason without its prefix; a test keeps the two equal."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    INVALID_FIELD = enum.auto()
    UNSUPPORTED_CONSTRAINT = enum.auto()
    CONSTRAINT_TOO_COMPLEX = enum.auto()
    CONTEXT_LENGTH_EXCEEDED = enum.auto()
    TEMPLATE_ERROR = enum.auto()
    UNSUPPORTED_FEATURE = enum.auto()
    SESSION_NOT_FOUND = enum.auto()
    SESSION_EXPIRED = enum.auto()
    TURN_NOT_FOUND = enum.auto()
    MODEL_NOT_FOUND = enum.auto()
    ID_TAKEN = enum.auto()
    STALE_HEAD = enum.auto()
    SESSION_BUSY = enum.auto()
    SESSION_ATTACHED = enum.auto()
    SESSION_FULL = enum.auto()
    TOOL_RESULTS_MISSING = enum.auto()
    NO_CHAT_TEMPLATE = enum.auto()
    QUOTA_EXCEEDED = enum.auto()
    NEVER_FITS = enum.auto()
    SLOW_CONSUMER = enum.auto()
    RESPONSE_TOO_LARGE = enum.auto()
    OVERLOADED = enum.auto()
    DRAINING = enum.auto()
    ENGINE_DOWN = enum.auto()
    STORE_UNAVAILABLE = enum.auto()
    TIMEOUT = enum.auto()
    BAD_CREDENTIAL = enum.auto()
    CONSTRAINT_VIOLATED = enum.auto()
    INTERNAL = enum.auto()
    TAKEN_OVER = enum.auto()


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field at fault: its path from the request or frame, and what is wrong with it."""

    field: str
    description: str


class AntiphonError(Exception):
    """An operating error, to be reported to whoever asked.

    Attributes:
        reason: What kind of failure it is; decides the gRPC status.
        message: What happened, the value, the limit and what to do.
        metadata: The figures of `message`, for programs.
        violations: The fields at fault, for INVALID_FIELD and its kin.
        retry_delay_s: How long to wait before a retry; None: a retry will not help.
    """

    def __init__(
        self,
        reason: ErrorReason,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_delay_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_delay_s = retry_delay_s


class InvalidRequest(AntiphonError):  # noqa: N818 - reads as what it is
    """A field of a request is at fault."""

    def __init__(self, *violations: FieldViolation) -> None:
        text = "; ".join(f"{v.field}: {v.description}" for v in violations)
        super().__init__(ErrorReason.INVALID_FIELD, text, violations=violations)


class StartupError(Exception):
    """The server can't start: one clear line for the person who started it, and a non-zero exit."""
