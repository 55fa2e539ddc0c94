"""Ids and resource names of sessions and turns."""

import re
import uuid
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.sessions.records import SessionKey

_SESSION_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
_TURN_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SESSION_NAME: Final = re.compile(rf"sessions/({_SESSION_ID.pattern})")
_TURN_NAME: Final = re.compile(rf"sessions/({_SESSION_ID.pattern})/turns/({_TURN_ID.pattern})")
MAX_FRAME_ID_BYTES: Final = 256


def parse_session_name(tenant: str, name: str, path: str) -> SessionKey:
    """Reads `sessions/{session}`. Raises InvalidRequest."""
    match = _SESSION_NAME.fullmatch(name)
    if match is None:
        raise _invalid(path, f"must be sessions/{{session}}; is {name[:128]!r}")
    return SessionKey(tenant, match[1])


def parse_turn_name(tenant: str, name: str, path: str) -> tuple[SessionKey, str]:
    """Reads `sessions/{session}/turns/{turn}`; returns the session and the turn's id."""
    match = _TURN_NAME.fullmatch(name)
    if match is None:
        raise _invalid(path, f"must be sessions/{{session}}/turns/{{turn}}; is {name[:200]!r}")
    return SessionKey(tenant, match[1]), match[2]


def check_session_id(session_id: str, path: str) -> None:
    """Checks a caller's choice of a session id. Raises InvalidRequest."""
    if not _SESSION_ID.fullmatch(session_id):
        raise _invalid(
            path, f"must be 1 to 64 characters from a-z, 0-9 and '-'; is {session_id[:128]!r}"
        )


def check_turn_id(turn_id: str, path: str) -> None:
    """Checks a caller's choice of a turn id. Raises InvalidRequest."""
    if not _TURN_ID.fullmatch(turn_id):
        raise _invalid(
            path,
            f"must be 1 to 64 characters from a-z, A-Z, 0-9, '_' and '-'; is {turn_id[:128]!r}",
        )


def check_request_id(request_id: str, path: str) -> None:
    """Checks that a request id, where given, is a UUID. Raises InvalidRequest."""
    if not request_id:
        return
    try:
        uuid.UUID(request_id)
    except ValueError:
        raise _invalid(path, f"must be a UUID; is {request_id[:128]!r}") from None


def check_frame_id(frame_id: str, path: str) -> None:
    """Checks that a frame id is short enough to be told back. Raises InvalidRequest."""
    num_bytes = len(frame_id.encode())
    if num_bytes > MAX_FRAME_ID_BYTES:
        raise _invalid(path, f"must be at most {MAX_FRAME_ID_BYTES} bytes; is {num_bytes}")


def session_not_found(key: SessionKey) -> AntiphonError:
    """Returns the error for a session that is not there."""
    return AntiphonError(
        ErrorReason.SESSION_NOT_FOUND,
        f"There is no session {key.name}.",
        metadata={"session": key.name},
    )


def turn_not_found(key: SessionKey, turn_id: str) -> AntiphonError:
    """Returns the error for a turn that is not there."""
    name = key.turn_name(turn_id)
    return AntiphonError(
        ErrorReason.TURN_NOT_FOUND, f"There is no turn {name}.", metadata={"turn": name}
    )


def _invalid(path: str, description: str) -> InvalidRequest:
    return InvalidRequest(FieldViolation(path, description))
