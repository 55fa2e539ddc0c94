"""What a server refuses or fails with, as exceptions that carry what it told."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
from antiphon.v1 import types_pb2
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_REQUEST_ID_KEY = "x-request-id"


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
    """A call, a turn or a frame failed. The subclasses go by gRPC status."""

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


_BY_CODE: Mapping[grpc.StatusCode, type[ServerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INTERNAL: InternalError,
}
_BY_NUMBER: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def error_of(details: ErrorDetails) -> ServerError:
    """Returns the exception for these details, of the class that goes with their code."""
    if details.code is grpc.StatusCode.UNAVAILABLE and not details.reason:
        return NotReachable(details)
    return _BY_CODE.get(details.code, ServerError)(details)


def from_rpc_error(error: grpc.aio.AioRpcError) -> ServerError:
    """Returns the exception that says all a failed call's trailers say."""
    trailers: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()
    status = status_pb2.Status()
    request_id = ""
    for key, value in trailers:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            status.ParseFromString(value)
        elif key == _REQUEST_ID_KEY:
            request_id = value if isinstance(value, str) else value.decode()
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry, request_info = error_details_pb2.RetryInfo(), error_details_pb2.RequestInfo()
    has_retry = False
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad_request)
        detail.Unpack(request_info)
        has_retry = detail.Unpack(retry) or has_retry
    return error_of(
        ErrorDetails(
            code=error.code(),
            reason=info.reason,
            message=error.details() or "",
            metadata=dict(info.metadata),
            violations=tuple(
                FieldViolation(v.field, v.description) for v in bad_request.field_violations
            ),
            retry_delay_s=retry.retry_delay.ToTimedelta().total_seconds() if has_retry else None,
            request_id=request_info.request_id or request_id,
        )
    )


def from_failure(failure: types_pb2.Failure) -> ServerError:
    """Returns the exception for a failure that was told inside a stream."""
    delayed = failure.HasField("retry_delay")
    return error_of(
        ErrorDetails(
            code=_BY_NUMBER.get(failure.code, grpc.StatusCode.UNKNOWN),
            reason=failure.reason,
            message=failure.message,
            metadata=dict(failure.metadata),
            violations=tuple(
                FieldViolation(v.field, v.description) for v in failure.field_violations
            ),
            retry_delay_s=failure.retry_delay.ToTimedelta().total_seconds() if delayed else None,
        )
    )
