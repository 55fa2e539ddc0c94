"""How turns fail, between errors and the contract's messages."""

from typing import Final

import grpc
from antiphon.v1.session_pb2 import Turn
from antiphon.v1.types_pb2 import Failure

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation
from antiphon_server.sessions.records import FAILED, QUEUED, RUNNING
from antiphon_server.times import to_ns

_CANCELLED_CODE: Final = int(grpc.StatusCode.CANCELLED.value[0])


def cancelled_failure(message: str) -> Failure:
    """Returns the failure of a turn that its caller stopped; it has no reason."""
    return Failure(code=_CANCELLED_CODE, message=message)


def is_cancelled(failure: Failure) -> bool:
    """Whether a failure says that the caller stopped the turn."""
    return failure.code == _CANCELLED_CODE


def to_error(failure: Failure) -> AntiphonError:
    """Returns the error that a failure was made of. Not for cancellations, which had none."""
    return AntiphonError(
        ErrorReason(failure.reason),
        failure.message,
        metadata=failure.metadata,
        violations=[FieldViolation(v.field, v.description) for v in failure.field_violations],
        retry_delay_s=(
            to_ns(failure.retry_delay) / 1e9 if failure.HasField("retry_delay") else None
        ),
    )


def server_stopped() -> AntiphonError:
    """Returns the error for a turn that a stop of the server cut off."""
    return AntiphonError(
        ErrorReason.ENGINE_DOWN,
        "The server stopped while the turn waited or ran. The session is as before it;"
        " start the turn again under a new id.",
        retry_delay_s=1.0,
    )


def turn_timeout(turn_name: str) -> AntiphonError:
    """Returns the error for a turn that has not ended within its timeout."""
    return AntiphonError(
        ErrorReason.TIMEOUT,
        "The turn has not ended within its timeout. Its partial output is in the turn; the session"
        " is as before it. Give it a longer timeout, or stop.time_limit to keep what there is.",
        metadata={"turn": turn_name},
    )


def mark_stopped(turn: Turn, failure: Failure) -> None:
    """Makes a turn that was not ended properly into a failed one."""
    assert turn.state in (QUEUED, RUNNING)
    turn.state = FAILED
    turn.failure.CopyFrom(failure)
    turn.last_sequence = 2  # `accepted` and `failed`: what came between is lost
