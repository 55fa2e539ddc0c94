"""How much sessions may hold, and the clocks and ids that they go by."""

import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Bounds on sessions and their turns."""

    max_queued_turns: int = 16
    """The most turns that wait in a session, beside the one that runs."""
    idle_ttl_s: float = 7 * 86400.0
    """How long a session lives after its last turn, where it sets no idle_ttl of its own."""
    retention_s: float = 3600.0
    """How long an idle session's cache keeps its priority, where it sets no duration of its own."""
    max_loaded: int = 1024
    """The most idle sessions whose log is kept in memory; others are read again when needed."""
    sweep_interval_s: float = 60.0
    """How often expired sessions are looked for."""
    expired_memory_s: float = 30 * 86400.0
    """How long an expired session is told from one that never was."""
    max_watchers: int = 16
    """The most streams that watch a session, beside the one that drives it."""
    max_undelivered_bytes: int = 1 << 20
    """What may wait in a turn for the stream that drives it before the turn is held."""
    slow_reader_grace_s: float = 30.0
    """How long a stream's reader may take nothing before it loses the stream."""
    reconnect_grace_s: float = 2.0
    """How long a turn that is to end with its stream waits for another one."""
    log_grace_s: float = 60.0
    """How long the events of a turn that has ended are kept once they have been taken in."""
    max_ended_log_bytes: int = 64 << 20
    """What the events of all turns that have ended may take in memory."""
    end_wait_s: float = 30.0
    """How long a cancelled turn may take to end before it is cut off."""
    recovery_wait_s: float = 60.0
    """How long a turn waits for an engine where there is none."""
    checkpoint_tokens: int = 64
    """A running turn is kept after so many new tokens, or else at this interval."""
    checkpoint_interval_s: float = 1.0
    max_attempts: int = 5
    """How often in a row the server or its engine may end before a turn gets on."""


def _new_id() -> str:
    return uuid.uuid4().hex


def _new_seed() -> int:
    return secrets.randbits(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks that sessions go by."""

    wall_ns: Callable[[], int] = time.time_ns
    """For what is kept and told."""
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    """For deadlines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What is drawn by chance."""

    draw_id: Callable[[], str] = _new_id
    """For sessions and turns whose caller chose none; 1 to 64 characters from a-z and 0-9."""
    draw_seed: Callable[[], int] = _new_seed
    """For sampling where the caller gave none; 64 bits."""
