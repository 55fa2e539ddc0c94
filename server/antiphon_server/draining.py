"""The way to the end of all work: nothing new, then what runs, then what is left of it."""

import asyncio
from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.long_calls import LongCalls
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.supervision import Supervision
from antiphon_server.times import NS_PER_S, to_duration

_TURN_END_S: Final = 4.0
"""How long turns that were cancelled may take to end and to be written."""
_CALL_END_S: Final = 1.0
"""How long calls may take to tell their callers of it."""
_RETRY_DELAY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What became of the work that ran."""

    num_finished: int = 0
    """Turns that finished by themselves."""
    num_cancelled: int = 0
    """Turns that were cancelled at the limit, with their output kept."""
    num_left: int = 0
    """Turns that are left to the next server."""
    num_calls: int = 0
    """Calls that ran at the limit."""


class Draining:
    """Drains a server once, for whoever asks. Used on one event loop."""

    def __init__(self, supervision: Supervision, long_calls: LongCalls) -> None:
        self._supervision = supervision
        self._long_calls = long_calls
        self._registry: SessionRegistry | None = None
        self._work: asyncio.Task[Drained] | None = None
        self._over = asyncio.Event()
        """Set at the limit."""
        self._timer: asyncio.TimerHandle | None = None
        self._leaves_turns = False

    @property
    def begun(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._work is not None

    @property
    def num_turns(self) -> int:
        """Turns that have not ended."""
        return self._registry.num_live_turns if self._registry is not None else 0

    def follow(self, registry: SessionRegistry) -> None:
        """Drains these sessions, too."""
        self._registry = registry

    async def drain(self, limit_s: float) -> Drained:
        """Takes nothing new, lets what runs go on up to the limit, and cuts off the rest.

        Turns that run then are cancelled, with their output kept. Once begun it goes on to its end,
        whether or not its caller waits. Another call joins it, and may bring the limit forward.
        """
        self._limit_to(limit_s)
        if self._work is None:
            self._begin(limit_s)
            self._work = asyncio.create_task(self._run())
        return await asyncio.shield(self._work)

    async def leave(self, limit_s: float) -> Drained:
        """The same, but leaves turns that run at the limit as they are, for the next server."""
        self._leaves_turns = True
        return await self.drain(limit_s)

    def _limit_to(self, limit_s: float) -> None:
        """Sets the limit, or brings it forward."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        if self._timer is None or deadline_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(deadline_s, self._over.set)

    def _begin(self, limit_s: float) -> None:
        """Tells everyone, health first."""
        self._supervision.begin_drain()
        if self._registry is not None:
            self._registry.drain(time_left_s=limit_s)
        time_left = to_duration(round(limit_s * NS_PER_S))
        self._long_calls.send_away(
            GoAway(reason=GoAway.REASON_DRAINING, time_left=time_left), _draining()
        )

    async def _run(self) -> Drained:
        registry = self._registry
        num_turns = self.num_turns
        waits = {
            asyncio.create_task(self._wait_idle()),
            asyncio.create_task(self._over.wait()),
        }
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        num_calls, num_cancelled = self._supervision.num_calls, 0
        if registry is not None and not self._leaves_turns:
            num_cancelled = registry.cancel_turns()
            await registry.wait_turns(_TURN_END_S)
        self._long_calls.cut_off(_draining())
        await self._supervision.wait_idle(_CALL_END_S)
        num_left = self.num_turns
        return Drained(
            num_finished=num_turns - max(num_cancelled, num_left),
            num_cancelled=num_cancelled,
            num_left=num_left,
            num_calls=num_calls,
        )

    async def _wait_idle(self) -> None:
        """Waits until nothing runs; turns go on without a call where their stream has left."""
        if self._registry is not None:
            await self._registry.wait_turns(None)
        await self._supervision.wait_idle(None)


def _draining() -> AntiphonError:
    return AntiphonError(
        ErrorReason.DRAINING,
        "the server is shutting down; try again elsewhere or later",
        retry_delay_s=_RETRY_DELAY_S,
    )
