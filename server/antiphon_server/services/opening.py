"""The first frame of a stream: which session, as what, and where its caller stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from antiphon.v1.session_pb2 import (
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    TurnCursor,
)

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.sessions.attachment import AttachmentRequest
from antiphon_server.sessions.names import check_frame_id, check_turn_id
from antiphon_server.validation import check_unknown_fields

MAX_CURSORS: Final = 64
"""Turns that a stream may go on with."""
MAX_ATTACHMENT_ID_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a stream begins."""

    name: str
    """The session's."""
    create: CreateSessionRequest | None
    """Makes the session; None: it is there."""
    attachment: AttachmentRequest
    cursors: Mapping[str, TurnCursor]
    """By turn id, in the caller's order."""
    max_unacked_events: int
    """0: the caller never acknowledges."""


def read_open(frame: ConverseRequest) -> Opening:
    """Reads a stream's first frame. Raises InvalidRequest."""
    check_unknown_fields(frame, "")
    check_frame_id(frame.frame_id, "frame_id")
    if frame.WhichOneof("frame") != "open":
        raise _invalid("open", "must be the first frame on a stream; send open first")
    asked = frame.open
    if asked.WhichOneof("session") is None:
        raise _invalid("open", "must have name or create set")
    if asked.watch_only:
        _check_watching(asked)
    num_bytes = len(asked.attachment_id.encode())
    if num_bytes > MAX_ATTACHMENT_ID_BYTES:
        raise _invalid(
            "open.attachment_id",
            f"must be at most {MAX_ATTACHMENT_ID_BYTES} bytes; has {num_bytes}",
        )
    return Opening(
        name=asked.name,
        create=asked.create if asked.HasField("create") else None,
        attachment=AttachmentRequest(
            attachment_id=asked.attachment_id,
            takes_over=asked.take_over,
            watches=asked.watch_only,
        ),
        cursors=_read_cursors(asked),
        max_unacked_events=asked.max_unacked_events,
    )


def _check_watching(asked: OpenSession) -> None:
    """Refuses what a stream that only watches can't do."""
    if asked.take_over:
        raise _invalid("open.take_over", "must not be set with watch_only, which takes nothing")
    if asked.max_unacked_events:
        raise _invalid(
            "open.max_unacked_events", "must be 0 with watch_only, which sends no acknowledgements"
        )


def _read_cursors(asked: OpenSession) -> dict[str, TurnCursor]:
    if len(asked.resume) > MAX_CURSORS:
        raise _invalid("open.resume", f"must be at most {MAX_CURSORS}; are {len(asked.resume)}")
    cursors: dict[str, TurnCursor] = {}
    for index, cursor in enumerate(asked.resume):
        path = f"open.resume[{index}].turn_id"
        check_turn_id(cursor.turn_id, path)
        if cursor.turn_id in cursors:
            raise _invalid(path, f"must be named once; {cursor.turn_id!r} is named twice")
        cursors[cursor.turn_id] = cursor
    return cursors


def _invalid(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(FieldViolation(field, description))
