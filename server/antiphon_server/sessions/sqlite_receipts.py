"""What requests were answered, kept for their retries, in the SQLite file."""

import sqlite3
from typing import Final

from antiphon.v1 import session_pb2

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.records import Receipt
from antiphon_server.sessions.store import RECEIPT_LIFETIME_NS

MAX_REMEMBERED_BYTES: Final = 64 << 20
"""What a tenant's receipts take at most: beyond it the oldest ones go before their time."""


def find_answer(connection: sqlite3.Connection, receipt: Receipt) -> session_pb2.Session | None:
    """See SessionStore.find_answer."""
    row = connection.execute(
        "SELECT fingerprint, answer FROM receipts"
        " WHERE tenant = ? AND request_id = ? AND create_ns > ?",
        (receipt.tenant, receipt.request_id, receipt.create_ns - RECEIPT_LIFETIME_NS),
    ).fetchone()
    if row is None:
        return None
    fingerprint, answer = row
    if fingerprint != receipt.fingerprint:
        raise AntiphonError(
            ErrorReason.ID_TAKEN,
            f"The request id {receipt.request_id!r} came before with another request;"
            " use a new one for each request.",
            metadata={"request_id": receipt.request_id},
        )
    return session_pb2.Session.FromString(answer)


def write_receipt(connection: sqlite3.Connection, receipt: Receipt | None) -> None:
    """Remembers what a request was answered, if it asked for that."""
    if receipt is None:
        return
    _forget(connection, receipt.tenant, receipt.request_id)
    connection.execute(
        "INSERT INTO receipts VALUES (?, ?, ?, ?, ?)",
        (
            receipt.tenant,
            receipt.request_id,
            receipt.fingerprint,
            receipt.create_ns,
            receipt.answer.SerializeToString(),
        ),
    )
    while _remembered_bytes(connection, receipt.tenant) > MAX_REMEMBERED_BYTES:
        (oldest,) = connection.execute(
            "SELECT request_id FROM receipts WHERE tenant = ? ORDER BY create_ns LIMIT 1",
            (receipt.tenant,),
        ).fetchone()
        _forget(connection, receipt.tenant, oldest)


def _forget(connection: sqlite3.Connection, tenant: str, request_id: str) -> None:
    connection.execute(
        "DELETE FROM receipts WHERE tenant = ? AND request_id = ?", (tenant, request_id)
    )


def _remembered_bytes(connection: sqlite3.Connection, tenant: str) -> int:
    (size_bytes,) = connection.execute(
        "SELECT size_bytes FROM remembered WHERE tenant = ?", (tenant,)
    ).fetchone()
    return int(size_bytes)
