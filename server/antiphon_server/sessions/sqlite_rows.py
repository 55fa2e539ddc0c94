"""Records to rows of the SQLite tables, and back."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from antiphon.v1 import session_pb2

from antiphon_server.sessions.records import (
    SessionKey,
    SessionRow,
    TurnOrder,
    TurnRow,
    TurnTokens,
    token_array,
)

Cell = str | int | bytes | None
Row = tuple[Cell, ...]

SESSION_COLUMNS: Final = "tenant, session_id, create_ns, idle_since_ns, expire_ns, version, session"
PLACE_COLUMNS: Final = (
    "tenant, session_id, position, turn_id, state, version, generates, continues, fingerprint"
)
TURN_COLUMNS: Final = f"{PLACE_COLUMNS}, turn"
TOKEN_COLUMNS: Final = "head_ids, head_digest, added_ids, output_ids"
ORDER_COLUMNS: Final = "request, accepted"


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


def place_cells(key: SessionKey, row: TurnRow) -> Row:
    """Returns the cells of PLACE_COLUMNS."""
    return (
        key.tenant,
        key.session_id,
        row.position,
        row.turn_id,
        row.turn.state,
        row.version,
        int(row.generates),
        int(row.continues),
        row.fingerprint,
    )


def order_cells(order: TurnOrder | None) -> Row:
    """Returns the cells of ORDER_COLUMNS."""
    if order is None:
        return (None, None)
    return (order.request.SerializeToString(), order.accepted.SerializeToString())


def token_cells(tokens: TurnTokens) -> Row:
    """Returns the cells of TOKEN_COLUMNS."""
    return (
        None if tokens.head_ids is None else tokens.head_ids.tobytes(),
        tokens.head_digest,
        tokens.added_ids.tobytes(),
        tokens.output_ids.tobytes(),
    )


def to_turn(cells: Sequence[Cell]) -> TurnRow:
    """Reads TURN_COLUMNS, and TOKEN_COLUMNS where they follow.

    A content may be shared by forks, so what a turn is in its session comes from its place: its
    state, its name and that of the turn before it.
    """
    tenant, session_id, position, turn_id, state, version, *others = cells
    generates, continues, fingerprint, content, *tokens = others
    key = SessionKey(_text(tenant), _text(session_id))
    turn = session_pb2.Turn.FromString(_blob(content))
    turn.state = session_pb2.Turn.State.ValueType(_integer(state))
    turn.name = key.turn_name(_text(turn_id))
    if turn.parent_turn:
        turn.parent_turn = key.turn_name(turn.parent_turn.rpartition("/")[2])
    return TurnRow(
        position=_integer(position),
        turn_id=_text(turn_id),
        generates=bool(generates),
        continues=bool(continues),
        fingerprint=_blob(fingerprint),
        turn=turn,
        version=_integer(version),
        tokens=_to_tokens(tokens) if tokens else TurnTokens(),
    )


def to_unfinished(cells: Sequence[Cell]) -> tuple[SessionKey, TurnRow]:
    """Reads TURN_COLUMNS and ORDER_COLUMNS."""
    *others, request, accepted = cells
    row = to_turn(others)
    key = SessionKey(_text(others[0]), _text(others[1]))
    if accepted is None:
        return key, row
    kind = session_pb2.StartTurn if row.generates else session_pb2.AppendItems
    order = TurnOrder(
        request=kind.FromString(_blob(request)),
        accepted=session_pb2.Session.FromString(_blob(accepted)),
    )
    return key, replace(row, order=order)


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
