"""What the engine is told of sessions, for its choice of what leaves the cache first.

All of it is hints: nothing here waits or fails, and an engine that missed them computes more.
"""

import hashlib

from antiphon_engine.api.handle import EngineHandle
from antiphon_server.retention import DEFAULT_PRIORITY, RetentionHint
from antiphon_server.sessions.records import COMPLETED, SessionKey, SessionRow, TurnQuery
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.times import NS_PER_S, to_ns

_NUM_LOOKED_AT = 16
"""Turns, from a fork's place backwards, among which its last answer is looked for."""


def number_of(key: SessionKey) -> int:
    """Returns what the engine knows a session by, the same after a restart; never 0."""
    name = f"{key.tenant}\0{key.session_id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) or 1


def retention_of(row: SessionRow, *, default_s: float) -> RetentionHint:
    """Returns the hint that goes with a session's turns.

    Args:
        row: The session.
        default_s: How long its priority holds where it doesn't say.
    """
    retention = row.session.retention
    has_duration = retention.HasField("duration")
    duration_ns = to_ns(retention.duration) if has_duration else default_s * NS_PER_S
    return RetentionHint(
        session=number_of(row.key),
        priority=retention.priority if retention.HasField("priority") else DEFAULT_PRIORITY,
        duration_us=max(1, int(duration_ns / 1000)),
    )


def tell_closed(surroundings: Surroundings, row: SessionRow) -> None:
    """Tells that nothing more comes of a session."""
    if engine := _engine_of(surroundings, row):
        engine.close_session(number_of(row.key))


def tell_rewound(surroundings: Surroundings, row: SessionRow, num_tokens: int) -> None:
    """Tells that a session goes on behind its first tokens."""
    if engine := _engine_of(surroundings, row):
        engine.rewind_session(number_of(row.key), num_tokens)


async def tell_forked(
    surroundings: Surroundings, parent: SessionRow, fork: SessionKey, position: int
) -> None:
    """Tells that a new session goes on from a turn of another.

    Args:
        surroundings: What sessions share.
        parent: The other session.
        fork: The new one.
        position: The turn's place; 0: the start.

    Raises:
        AntiphonError: STORE_UNAVAILABLE; the engine was told of the fork and not where it begins.
    """
    engine = _engine_of(surroundings, parent)
    if engine is None or not position:
        return
    engine.fork_session(number_of(parent.key), number_of(fork))
    rows = await surroundings.store.list_turns(
        TurnQuery(
            key=fork, after_position=None, limit=_NUM_LOOKED_AT, newest_first=True, show_all=False
        )
    )
    for row in rows:
        if row.generates and row.turn.state == COMPLETED:
            usage = row.turn.usage
            engine.rewind_session(number_of(fork), usage.prompt_tokens + usage.output_tokens)
            return


def _engine_of(surroundings: Surroundings, row: SessionRow) -> EngineHandle | None:
    model = surroundings.models.get(row.session.model)
    return None if model is None else model.engine
