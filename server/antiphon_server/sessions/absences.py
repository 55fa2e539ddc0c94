"""Turns that are to end with their stream: how long that may be broken before they do."""

import asyncio
from collections.abc import Callable
from functools import partial

from antiphon_server.sessions.turn import LiveTurn


class Absences:
    """Stops turns that asked for it once their reader has been away too long.

    Until then the engine rests on them. A stream that goes on with the turn in time, by whatever
    call, is as good as the first.
    """

    def __init__(self, cancel: Callable[[LiveTurn], None], grace_s: float) -> None:
        """Sets how a turn is stopped, and after how long."""
        self._cancel = cancel
        self._grace_s = grace_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def note_leaving(self, turn: LiveTurn) -> None:
        """Says that a stream that told of a turn has gone, before the turn has ended."""
        if not turn.request.cancels_on_disconnect or turn.log.driven or turn.ended.is_set():
            return
        if not self._grace_s:
            self._cancel(turn)
        elif turn.turn_id not in self._timers:
            turn.hold()
            turn.log.on_driven = partial(self._end_absence, turn)
            loop = asyncio.get_running_loop()
            self._timers[turn.turn_id] = loop.call_later(self._grace_s, self._give_up, turn)

    def _end_absence(self, turn: LiveTurn) -> None:
        """Lets a turn go on whose reader has come back."""
        self._timers.pop(turn.turn_id).cancel()
        turn.log.on_driven = _nothing
        turn.release()

    def _give_up(self, turn: LiveTurn) -> None:
        del self._timers[turn.turn_id]
        turn.log.on_driven = _nothing
        if not turn.ended.is_set():
            self._cancel(turn)


def _nothing() -> None:
    """Nobody waits for a reader."""
