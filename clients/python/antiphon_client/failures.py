"""From what a server tells of a failure to an exception."""

from collections.abc import Iterable, Mapping

import grpc
from antiphon.v1 import types_pb2
from google.rpc import error_details_pb2, status_pb2

from antiphon_client.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    ErrorDetails,
    FailedPrecondition,
    FieldViolation,
    InternalError,
    InvalidArgument,
    NotFound,
    NotReachable,
    ResourceExhausted,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from antiphon_client.reasons import BY_REASON

_DETAILS_KEY = "grpc-status-details-bin"
_REQUEST_ID_KEY = "x-request-id"
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
    """Returns the exception of the class that goes with the reason and the code."""
    if details.code is grpc.StatusCode.UNAVAILABLE and not details.reason:
        return NotReachable(details)
    general = _BY_CODE.get(details.code, ServerError)
    special = BY_REASON.get(details.reason, general)
    return (special if issubclass(special, general) else general)(details)


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
