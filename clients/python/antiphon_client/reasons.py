"""An exception for every reason that the contract gives for a failure."""

# ruff: noqa: N818 - named as the reasons are

from collections.abc import Mapping
from typing import Final

from antiphon_client.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)


class InvalidField(InvalidArgument):
    """A field is at fault; `violations` name it."""


class UnsupportedConstraint(InvalidArgument):
    """The constraint can't be enforced whole; `violations` name the part."""


class ConstraintTooComplex(InvalidArgument):
    """The constraint is past the limits on size or compile time."""


class ContextLengthExceeded(InvalidArgument):
    """Prompt and output together don't fit the model's context."""


class TemplateError(InvalidArgument):
    """The chat template refuses the conversation; the message is the template's."""


class UnsupportedFeature(Unimplemented):
    """The model or the server can't do it; `metadata` names the capability."""


class SessionNotFound(NotFound):
    """There is no such session, or it is another tenant's."""


class SessionExpired(NotFound):
    """The session was there and has expired; `metadata` says when."""


class TurnNotFound(NotFound):
    """The session has no such turn."""


class ModelNotFound(NotFound):
    """The server has no such model."""


class IdTaken(AlreadyExists):
    """The id stands for something else already."""


class StaleHead(Aborted):
    """The session has gone on meanwhile; `metadata` names its head."""


class SessionBusy(FailedPrecondition):
    """A turn runs; `metadata` names it."""


class SessionAttached(FailedPrecondition):
    """Another stream drives the session; take it over, or leave it."""


class SessionFull(FailedPrecondition):
    """The session's context is full: fork it further back, or begin another."""


class ToolResultsMissing(FailedPrecondition):
    """Tool calls of the last turn have no results yet."""


class NoChatTemplate(FailedPrecondition):
    """The model has no chat template: ask with raw text."""


class QuotaExceeded(ResourceExhausted):
    """A quota of the tenant's is used up; `retry_delay_s` says for how long."""


class NeverFits(ResourceExhausted):
    """The request alone can never fit the server's memory."""


class SlowConsumer(ResourceExhausted):
    """What the server sent was not read in time."""


class ResponseTooLarge(ResourceExhausted):
    """The answer is larger than a message may be: ask for it as a stream."""


class Overloaded(Unavailable):
    """Too much waits already; `retry_delay_s` says when to come back."""


class Draining(Unavailable):
    """The server is shutting down."""


class EngineDown(Unavailable):
    """The engine is starting again."""


class StoreUnavailable(Unavailable):
    """The session store can't be written."""


class TimedOut(DeadlineExceeded):
    """The call's deadline or the turn's timeout has passed."""


class BadCredential(Unauthenticated):
    """The credential is missing or wrong."""


class ConstraintViolated(InternalError):
    """The finished output did not satisfy its constraint."""


class InternalFault(InternalError):
    """A fault of the server's; `details.request_id` finds it in its log."""


class TakenOver(Aborted):
    """Another stream took the session over."""


BY_REASON: Final[Mapping[str, type[ServerError]]] = {
    "INVALID_FIELD": InvalidField,
    "UNSUPPORTED_CONSTRAINT": UnsupportedConstraint,
    "CONSTRAINT_TOO_COMPLEX": ConstraintTooComplex,
    "CONTEXT_LENGTH_EXCEEDED": ContextLengthExceeded,
    "TEMPLATE_ERROR": TemplateError,
    "UNSUPPORTED_FEATURE": UnsupportedFeature,
    "SESSION_NOT_FOUND": SessionNotFound,
    "SESSION_EXPIRED": SessionExpired,
    "TURN_NOT_FOUND": TurnNotFound,
    "MODEL_NOT_FOUND": ModelNotFound,
    "ID_TAKEN": IdTaken,
    "STALE_HEAD": StaleHead,
    "SESSION_BUSY": SessionBusy,
    "SESSION_ATTACHED": SessionAttached,
    "SESSION_FULL": SessionFull,
    "TOOL_RESULTS_MISSING": ToolResultsMissing,
    "NO_CHAT_TEMPLATE": NoChatTemplate,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "NEVER_FITS": NeverFits,
    "SLOW_CONSUMER": SlowConsumer,
    "RESPONSE_TOO_LARGE": ResponseTooLarge,
    "OVERLOADED": Overloaded,
    "DRAINING": Draining,
    "ENGINE_DOWN": EngineDown,
    "STORE_UNAVAILABLE": StoreUnavailable,
    "TIMEOUT": TimedOut,
    "BAD_CREDENTIAL": BadCredential,
    "CONSTRAINT_VIOLATED": ConstraintViolated,
    "INTERNAL": InternalFault,
    "TAKEN_OVER": TakenOver,
}
"""The exception of each ErrorReason, named without its prefix."""
