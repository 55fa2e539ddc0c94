"""How a session's row changes, and how it is told."""

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from antiphon.v1.session_pb2 import Session

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.records import SessionRow
from antiphon_server.times import to_ns, to_timestamp

SMALLER_SESSION: Final = "give the session less of instructions, labels and defaults"


def etag_of(row: SessionRow) -> str:
    """Returns what changes with every change of the session or its head."""
    text = f"{row.create_ns}.{row.version}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def present(row: SessionRow, *, active: bool) -> Session:
    """Returns a session as callers see it, but for its residency.

    Args:
        row: The session.
        active: Whether it has turns that have not ended.
    """
    session = Session()
    session.CopyFrom(row.session)
    session.state = Session.STATE_ACTIVE if active else Session.STATE_IDLE
    session.etag = etag_of(row)
    if active:
        # While a turn runs, only the fixed limit is known.
        if session.HasField("latest_expire_time"):
            session.expire_time.CopyFrom(session.latest_expire_time)
    elif row.expire_ns is not None:
        session.expire_time.CopyFrom(to_timestamp(row.expire_ns))
    return session


def changed(row: SessionRow, session: Session, *, now_ns: int, default_ttl_ns: int) -> SessionRow:
    """Returns the row with other values in its session, and a new version."""
    session.update_time.CopyFrom(to_timestamp(now_ns))
    return with_expiry(
        replace(row, session=session, version=row.version + 1), default_ttl_ns=default_ttl_ns
    )


@dataclass(frozen=True, slots=True)
class Head:
    """The last turn of a history."""

    turn: str
    """Its name."""
    num_turns: int
    """How many turns there are with it."""


def behind_turn(
    row: SessionRow, *, head: Head | None, now_ns: int, default_ttl_ns: int
) -> SessionRow:
    """Returns the row after a turn has ended.

    Args:
        row: The session before.
        head: The turn, if it is in the history; None: it failed.
        now_ns: When it ended.
        default_ttl_ns: How long the session lives from there, if it doesn't say.
    """
    session = Session()
    session.CopyFrom(row.session)
    if head is not None:
        session.head_turn = head.turn
        session.num_turns = head.num_turns
    session.update_time.CopyFrom(to_timestamp(now_ns))
    version = row.version + (head is not None)
    ended = replace(row, session=session, version=version, idle_since_ns=now_ns)
    return with_expiry(ended, default_ttl_ns=default_ttl_ns)


def with_expiry(row: SessionRow, *, default_ttl_ns: int) -> SessionRow:
    """Returns the row with the time at which it will be deleted if nothing happens."""
    session = row.session
    ttl_ns = to_ns(session.idle_ttl) if session.HasField("idle_ttl") else default_ttl_ns
    expire_ns = row.idle_since_ns + ttl_ns
    if session.HasField("latest_expire_time"):
        expire_ns = min(expire_ns, to_ns(session.latest_expire_time))
    return replace(row, expire_ns=expire_ns)


def check_etag(row: SessionRow, etag: str) -> None:
    """Checks a condition that a caller may have set. Raises AntiphonError, STALE_HEAD."""
    if etag and etag != etag_of(row):
        raise stale_head(row, f"The etag is {etag[:64]!r} and the session's is {etag_of(row)!r}.")


def stale_head(row: SessionRow, difference: str) -> AntiphonError:
    """Returns the error for a caller that doesn't know what has happened since."""
    return AntiphonError(
        ErrorReason.STALE_HEAD,
        f"{difference} Read the session again, and decide anew.",
        metadata={
            "session": row.key.name,
            "current_head": row.session.head_turn,
            "etag": etag_of(row),
        },
    )
