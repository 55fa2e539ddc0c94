"""Records to rows of the SQLite tables, and back."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from antiphon.v1 import session_pb2

from antiphon_server.sessions.records import (
    SessionKey,
    SessionRow,
    TurnRow,
    TurnTokens,
    token_array,
)

Cell = str | int | bytes | None
Row = tuple[Cell, ...]

SESSION_COLUMNS: Final = "tenant, session_id, create_ns, idle_since_ns, expire_ns, version, session"
TURN_COLUMNS: Final = "position, turn_id, generates, fingerprint, turn, version"
TOKEN_COLUMNS: Final = "head_ids, head_digest, added_ids, output_ids"


def session_cells(row: SessionRow) -> Row:
    """Returns the cells of SESSION_COLUMNS."""
    return (
        row.key.tenant,
        row.key.session_id,
        row.create_ns,
        row.idle_since_ns,
        row.expire_ns,
        row.version,
        row.session.SerializeToString(),
    )


def to_session(cells: Sequence[Cell]) -> SessionRow:
    """Reads SESSION_COLUMNS."""
    tenant, session_id, create_ns, idle_since_ns, expire_ns, version, session = cells
    return SessionRow(
        key=SessionKey(_text(tenant), _text(session_id)),
        create_ns=_integer(create_ns),
        idle_since_ns=_integer(idle_since_ns),
        expire_ns=None if expire_ns is None else _integer(expire_ns),
        version=_integer(version),
        session=session_pb2.Session.FromString(_blob(session)),
    )


def turn_cells(row: TurnRow) -> Row:
    """Returns the cells of TURN_COLUMNS."""
    turn = row.turn.SerializeToString()
    return (row.position, row.turn_id, int(row.generates), row.fingerprint, turn, row.version)


def token_cells(tokens: TurnTokens) -> Row:
    """Returns the cells of TOKEN_COLUMNS."""
    return (
        None if tokens.head_ids is None else tokens.head_ids.tobytes(),
        tokens.head_digest,
        tokens.added_ids.tobytes(),
        tokens.output_ids.tobytes(),
    )


def to_turn(cells: Sequence[Cell]) -> TurnRow:
    """Reads TURN_COLUMNS, and TOKEN_COLUMNS where they follow."""
    position, turn_id, generates, fingerprint, turn, version, *tokens = cells
    return TurnRow(
        position=_integer(position),
        turn_id=_text(turn_id),
        generates=bool(generates),
        fingerprint=_blob(fingerprint),
        turn=session_pb2.Turn.FromString(_blob(turn)),
        version=_integer(version),
        tokens=_to_tokens(tokens) if tokens else TurnTokens(),
    )


def fetch(connection: sqlite3.Connection, sql: str, cells: Sequence[Cell]) -> list[Row]:
    """Runs a query and returns all rows."""
    return connection.execute(sql, cells).fetchall()


def _to_tokens(cells: Sequence[Cell]) -> TurnTokens:
    head_ids, head_digest, added_ids, output_ids = cells
    return TurnTokens(
        head_ids=None if head_ids is None else token_array(_blob(head_ids)),
        head_digest=_blob(head_digest),
        added_ids=token_array(_blob(added_ids)),
        output_ids=token_array(_blob(output_ids)),
    )


def _text(cell: Cell) -> str:
    assert isinstance(cell, str)
    return cell


def _integer(cell: Cell) -> int:
    assert isinstance(cell, int)
    return cell


def _blob(cell: Cell) -> bytes:
    assert isinstance(cell, bytes)
    return cell
