"""Logs of turns that have ended, kept a while for readers that were cut off."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.records import SessionKey
from antiphon_server.times import NS_PER_S

_ENTRY_BYTES: Final = 1024
"""What a log takes beside its events, about."""

_Name = tuple[SessionKey, str]


@dataclass(frozen=True, slots=True)
class _Kept:
    log: EventLog
    size_bytes: int


class EndedLogs:
    """The logs of a server's turns that have ended. Used on one event loop.

    A log goes some time after all of it has been taken in, and the oldest ones go as soon as all
    together pass their bound. What has gone is made again from the store, which does not know at
    which numbers an output was cut.
    """

    def __init__(self, *, max_bytes: int, grace_s: float, clock_ns: Callable[[], int]) -> None:
        """Sets the bound, how long a log stays once it is taken in, and the clock for that."""
        self._max_bytes = max_bytes
        self._grace_s = grace_s
        self._clock_ns = clock_ns
        self._kept: OrderedDict[_Name, _Kept] = OrderedDict()
        self._turn_ids: defaultdict[SessionKey, set[str]] = defaultdict(set)
        self._size_bytes = 0
        self._leave_ns: OrderedDict[_Name, int] = OrderedDict()
        """When those that have been taken in go, soonest first."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        """What all of them take."""
        return self._size_bytes

    def keep(self, key: SessionKey, log: EventLog) -> None:
        """Keeps the log of a turn that has ended."""
        assert log.ended
        name = (key, log.turn_id)
        self._drop(name)
        kept = _Kept(log, log.size_bytes + _ENTRY_BYTES)
        self._kept[name] = kept
        self._turn_ids[key].add(log.turn_id)
        self._size_bytes += kept.size_bytes
        log.on_settled = partial(self._note_settled, name)
        if log.settled:
            self._note_settled(name)
        while self._size_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, key: SessionKey, turn_id: str) -> EventLog | None:
        """Returns a turn's log, if it is still kept."""
        kept = self._kept.get((key, turn_id))
        return kept.log if kept else None

    def drop_session(self, key: SessionKey) -> None:
        """Forgets a session that is gone, so that its name may be another's."""
        for turn_id in list(self._turn_ids.get(key, ())):
            self._drop((key, turn_id))

    def close(self) -> None:
        """Forgets all."""
        for name in list(self._kept):
            self._drop(name)
        if self._timer is not None:
            self._timer.cancel()

    def _note_settled(self, name: _Name) -> None:
        if name not in self._leave_ns:
            self._leave_ns[name] = self._clock_ns() + int(self._grace_s * NS_PER_S)
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._leave_ns:
            left_ns = next(iter(self._leave_ns.values())) - self._clock_ns()
            self._timer = asyncio.get_running_loop().call_later(
                max(0, left_ns) / NS_PER_S, self._drop_due
            )

    def _drop_due(self) -> None:
        self._timer = None
        now_ns = self._clock_ns()
        while self._leave_ns:
            name, leave_ns = next(iter(self._leave_ns.items()))
            if leave_ns > now_ns:
                break
            self._drop(name)
        self._set_timer()

    def _drop(self, name: _Name) -> None:
        if kept := self._kept.pop(name, None):
            self._size_bytes -= kept.size_bytes
            self._leave_ns.pop(name, None)
            key, turn_id = name
            self._turn_ids[key].discard(turn_id)
            if not self._turn_ids[key]:
                del self._turn_ids[key]
            kept.log.on_settled = _nothing


def _nothing() -> None:
    """Nobody waits for it any more."""
