"""The one table from error reasons to gRPC statuses, and the details that go with them."""

from collections.abc import Iterator, Mapping
from typing import Final

import grpc
from antiphon.v1 import types_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation

DOMAIN: Final = "antiphon.dev"

MAX_MESSAGE_BYTES: Final = 1024
MAX_DETAILS_BYTES: Final = 4096
"""Clients take 8 KiB of trailers by default; a status that is larger is lost whole."""

CODES: Final[Mapping[ErrorReason, grpc.StatusCode]] = {
    ErrorReason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UNSUPPORTED_CONSTRAINT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.CONSTRAINT_TOO_COMPLEX: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.TEMPLATE_ERROR: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UNSUPPORTED_FEATURE: grpc.StatusCode.UNIMPLEMENTED,
    ErrorReason.SESSION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.SESSION_EXPIRED: grpc.StatusCode.NOT_FOUND,
    ErrorReason.TURN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.ID_TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    ErrorReason.STALE_HEAD: grpc.StatusCode.ABORTED,
    ErrorReason.SESSION_BUSY: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.SESSION_ATTACHED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.SESSION_FULL: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.TOOL_RESULTS_MISSING: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.NO_CHAT_TEMPLATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.NEVER_FITS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.SLOW_CONSUMER: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.RESPONSE_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.OVERLOADED: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.ENGINE_DOWN: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.STORE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorReason.BAD_CREDENTIAL: grpc.StatusCode.UNAUTHENTICATED,
    ErrorReason.CONSTRAINT_VIOLATED: grpc.StatusCode.INTERNAL,
    ErrorReason.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorReason.TAKEN_OVER: grpc.StatusCode.ABORTED,
}

_RESOURCES: Final[Mapping[ErrorReason, tuple[str, str]]] = {
    ErrorReason.SESSION_NOT_FOUND: ("antiphon.v1.Session", "session"),
    ErrorReason.SESSION_EXPIRED: ("antiphon.v1.Session", "session"),
    ErrorReason.TURN_NOT_FOUND: ("antiphon.v1.Turn", "turn"),
    ErrorReason.MODEL_NOT_FOUND: ("antiphon.v1.Model", "model"),
}
"""The kind of resource that is missing, and the key of its name in the error's metadata."""


def to_rpc_status(error: AntiphonError, request_id: str = "") -> status_pb2.Status:
    """Returns the status that ends a call, small enough for the trailers of any client."""
    status = status_pb2.Status(
        code=_code_number(error.reason), message=_cut(error.message, MAX_MESSAGE_BYTES)
    )
    for detail in _details(error, request_id):
        packed = AnyMessage()
        packed.Pack(detail)
        if status.ByteSize() + packed.ByteSize() <= MAX_DETAILS_BYTES:
            status.details.append(packed)
    return status


def to_failure(error: AntiphonError) -> types_pb2.Failure:
    """Returns the failure that tells of an error inside a stream that goes on.

    It says what the status of a call would, within the same bounds.
    """
    return types_pb2.Failure(
        code=_code_number(error.reason),
        reason=error.reason.value,
        message=_cut(error.message, MAX_MESSAGE_BYTES),
        metadata=_metadata(error),
        field_violations=[
            types_pb2.FieldViolation(field=v.field, description=v.description)
            for v in _violations(error)
        ],
        retry_delay=_duration(error.retry_delay_s),
    )


def _code_number(reason: ErrorReason) -> int:
    number = CODES[reason].value[0]
    assert isinstance(number, int)
    return number


def _details(error: AntiphonError, request_id: str) -> Iterator[Message]:
    """Yields the details, the most telling first."""
    yield error_details_pb2.ErrorInfo(
        reason=error.reason.value,
        domain=DOMAIN,
        metadata=_metadata(error),
    )
    if error.retry_delay_s is not None:
        yield error_details_pb2.RetryInfo(retry_delay=_duration(error.retry_delay_s))
    if request_id:
        yield error_details_pb2.RequestInfo(request_id=request_id)
    if error.violations:
        yield _bad_request(error)
    if special := _detail_of_kind(error):
        yield special


def _metadata(error: AntiphonError) -> dict[str, str]:
    return {key: _cut(value, 256) for key, value in list(error.metadata.items())[:8]}


def _violations(error: AntiphonError) -> list[FieldViolation]:
    """Returns the first few fields at fault; the rest would not fit."""
    return [
        FieldViolation(_cut(violation.field, 128), _cut(violation.description, 256))
        for violation in error.violations[:4]
    ]


def _bad_request(error: AntiphonError) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=violation.field, description=violation.description
            )
            for violation in _violations(error)
        ]
    )


def _detail_of_kind(error: AntiphonError) -> Message | None:
    """Returns the detail that goes with one kind of failure alone."""
    detail: Message | None = None
    if resource := _RESOURCES.get(error.reason):
        kind, key = resource
        detail = error_details_pb2.ResourceInfo(
            resource_type=kind,
            resource_name=_cut(error.metadata.get(key, ""), 256),
            description=_cut(error.message, 256),
        )
    elif error.reason is ErrorReason.ID_TAKEN:
        named = [(kind, error.metadata.get(key, "")) for kind, key in _RESOURCES.values()]
        kind, name = next((pair for pair in named if pair[1]), ("", ""))
        detail = error_details_pb2.ResourceInfo(resource_type=kind, resource_name=_cut(name, 256))
    elif error.reason is ErrorReason.QUOTA_EXCEEDED:
        violation = error_details_pb2.QuotaFailure.Violation(
            subject=_cut(error.metadata.get("quota", ""), 256), description=_cut(error.message, 256)
        )
        detail = error_details_pb2.QuotaFailure(violations=[violation])
    elif CODES[error.reason] is grpc.StatusCode.FAILED_PRECONDITION:
        failure = error_details_pb2.PreconditionFailure.Violation(
            type=error.reason.value,
            subject=_cut(error.metadata.get("turn") or error.metadata.get("session", ""), 256),
            description=_cut(error.message, 256),
        )
        detail = error_details_pb2.PreconditionFailure(violations=[failure])
    return detail


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1_000_000_000))


def _cut(text: str, max_bytes: int) -> str:
    """Returns `text`, or as much of its start as fits with a sign that something is missing."""
    encoded = text.encode("utf-8", errors="replace")
    if len(encoded) <= max_bytes:
        return text
    return encoded[: max_bytes - 3].decode("utf-8", errors="ignore") + "…"
