"""Rows of a session store, made short."""

from array import array

from antiphon.v1.session_pb2 import Session, Turn
from antiphon.v1.types_pb2 import ROLE_USER, ChatMessage, Item

from antiphon_server.sessions.records import (
    COMPLETED,
    QUEUED,
    NewSession,
    Receipt,
    SessionKey,
    SessionRow,
    TurnRow,
    TurnTokens,
)

NEVER = None


def user(text: str) -> Item:
    return Item(message=ChatMessage(role=ROLE_USER, text=text))


def key_of(session_id: str = "a", tenant: str = "") -> SessionKey:
    return SessionKey(tenant, session_id)


def session_row(
    key: SessionKey | None = None,
    *,
    create_ns: int = 1,
    expire_ns: int | None = NEVER,
    labels: dict[str, str] | None = None,
    version: int = 1,
) -> SessionRow:
    key = key or key_of()
    return SessionRow(
        key=key,
        session=Session(name=key.name, model="models/tiny", labels=labels or {}),
        version=version,
        create_ns=create_ns,
        idle_since_ns=create_ns,
        expire_ns=expire_ns,
    )


def new_session(
    row: SessionRow, *, receipt: Receipt | None = None, max_sessions: int = 100
) -> NewSession:
    return NewSession(row=row, first_turn=None, receipt=receipt, max_sessions=max_sessions)


def turn_row(
    position: int = 1,
    *,
    key: SessionKey | None = None,
    state: int = QUEUED,
    output_ids: tuple[int, ...] = (),
) -> TurnRow:
    key = key or key_of()
    turn_id = f"t{position}"
    return TurnRow(
        position=position,
        turn_id=turn_id,
        generates=True,
        fingerprint=b"f",
        turn=Turn(name=key.turn_name(turn_id), state=state, input=[user(f"say {position}")]),
        tokens=TurnTokens(
            head_ids=array("i", [1, 2, 3]) if position == 1 and output_ids else None,
            added_ids=array("i", [7] * position),
            output_ids=array("i", output_ids),
        ),
    )


def completed_row(position: int = 1, *, key: SessionKey | None = None) -> TurnRow:
    return turn_row(position, key=key, state=COMPLETED, output_ids=(position, position + 1))
