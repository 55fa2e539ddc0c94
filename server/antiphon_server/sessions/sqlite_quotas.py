"""What the sessions of a tenant may take up, checked inside the transaction that adds to it."""

import sqlite3

from antiphon_server.access.quota_limits import quota_exceeded
from antiphon_server.sessions.records import NewSession
from antiphon_server.times import NS_PER_S


def check_num_sessions(connection: sqlite3.Connection, new: NewSession) -> None:
    """Checks that a tenant may have one more session. Raises AntiphonError, QUOTA_EXCEEDED."""
    if new.max_sessions == 0:
        return
    (count, first_expire_ns) = connection.execute(
        "SELECT count(*), min(expire_ns) FROM sessions"
        " WHERE tenant = ? AND (expire_ns IS NULL OR expire_ns > ?)",
        (new.row.key.tenant, new.row.create_ns),
    ).fetchone()
    if count >= new.max_sessions:
        raise quota_exceeded(
            "max_sessions",
            limit=new.max_sessions,
            used=count,
            asked=1,
            delay_s=first_expire_ns and (first_expire_ns - new.row.create_ns) / NS_PER_S,
        )


def check_stored(connection: sqlite3.Connection, tenant: str, max_stored_bytes: int) -> None:
    """Checks that a tenant may keep more; 0: no limit. Raises AntiphonError, QUOTA_EXCEEDED.

    What is about to be added doesn't count, since an output's size can't be foreseen.
    """
    if max_stored_bytes == 0:
        return
    used = connection.execute(
        "SELECT size_bytes FROM stored WHERE tenant = ?", (tenant,)
    ).fetchone()
    if used is not None and used[0] >= max_stored_bytes:
        raise quota_exceeded(
            "max_stored_bytes", limit=max_stored_bytes, used=used[0], asked=1, delay_s=None
        )
