"""One client: talks in sessions of its own, and knows what must have come of it."""

import asyncio
import random

from antiphon.v1.session_pb2_grpc import SessionServiceStub

from torture.audit import Auditor, check_turn
from torture.calls import RefusedError
from torture.plans import Plans, Scale
from torture.session_notes import SessionNotes
from torture.talk import Talk
from torture.tally import Kind, Tally, ViolationError
from torture.turn_notes import TurnNotes
from torture.unary import Unary
from torture.victim import Victim

_MAX_SESSIONS = 4
_MAX_TURNS = 24
"""Turns of a session, until it is audited and a new one is made."""
_ACTIONS = {
    "converse": 8,
    "run": 3,
    "append": 2,
    "fork": 1,
    "rewind": 1,
    "stop": 2,
    "look": 3,
    "audit": 1,
}


class Client:
    """Uses one connection, and does one thing after the other; each session is its own alone."""

    def __init__(
        self, number: int, victim: Victim, tally: Tally, *, scale: Scale, seed: int
    ) -> None:
        self.sessions: list[SessionNotes] = []
        self.retired: list[SessionNotes] = []
        self.busy = False
        self._id = f"c{number}"
        self._scale = scale
        self._victim = victim
        self._tally = tally
        self._rng = random.Random(f"{seed}/{number}")
        self._channel = victim.channel()
        self._stub = SessionServiceStub(self._channel)
        self.unary = Unary(self._stub, victim, tally, self._rng)
        self.auditor = Auditor(self.unary, tally)
        self._plans = Plans(self._rng, scale, self._draw_turn_id)
        self._num_drawn = 0

    async def live(self, stopped: asyncio.Event) -> None:
        """Acts until it is told to stop; ends between two acts."""
        while not stopped.is_set() and not self._tally.hopeless:
            session = await self._choose_session()
            if session is None:
                continue
            action = self._rng.choices(list(_ACTIONS), list(_ACTIONS.values()))[0]
            self._tally.note(f"{self._id} {action} {session.name}")
            await self.guarded(session, action)
            if session.broken or len(session.history) + len(session.others) >= _MAX_TURNS:
                self.sessions.remove(session)
                if not session.broken:
                    self.retired.append(session)

    async def guarded(self, session: SessionNotes, action: str) -> None:
        """Does something; a fault is reported and the session given up."""
        try:
            await getattr(self, f"_{action}")(session)
        except ViolationError as fault:
            session.broken = True
            self._tally.report(fault)
        except RefusedError as refused:
            session.broken = True
            is_gone = refused.reason in ("TURN_NOT_FOUND", "SESSION_NOT_FOUND")
            kind = Kind.LOST if is_gone else Kind.REFUSED
            self._tally.report(ViolationError(kind, f"{action} on {session.name}: {refused}"))

    async def close(self) -> None:
        """Lets go of the connection."""
        await self._channel.close()

    async def _choose_session(self) -> SessionNotes | None:
        if self.sessions and (len(self.sessions) >= _MAX_SESSIONS or self._rng.random() < 0.9):
            return self._rng.choice(self.sessions)
        session_id = self._draw_id("s")
        made = SessionNotes(
            name=f"sessions/{session_id}",
            instructions=self._plans.text(),
            tools=self._plans.tools(),
        )
        try:
            await self.unary.create(session_id, made.instructions, tools=made.tools)
        except (ViolationError, RefusedError) as error:
            self._tally.report(ViolationError(Kind.REFUSED, f"create: {error}"))
            return None
        self._tally.counts["sessions"] += 1
        self._tally.counts["sessions_with_tools"] += bool(made.tools)
        self.sessions.append(made)
        return made

    async def _converse(self, session: SessionNotes) -> None:
        steps = self._plans.conversation(session)
        talk = Talk(self._stub, self._victim, self._tally, session)
        manner = self._plans.manner(f"{self._id}-{self._rng.getrandbits(16)}")
        watching = None
        if self._rng.random() < 0.25:
            watching = asyncio.create_task(self._watch(session, steps[0].turn))
        try:
            turns = await talk.run(steps, manner)
        except BaseException:
            if watching is not None:
                watching.cancel()
            raise
        session.settle(turns)
        if watching is not None:
            await watching

    async def _watch(self, session: SessionNotes, turn: TurnNotes) -> None:
        await asyncio.sleep(self._rng.random() * 0.05)
        await self.unary.read_and_follow(session, turn)

    async def _run(self, session: SessionNotes) -> None:
        turn = self._plans.turn(session, alone=True)
        await self.unary.run(session, turn)
        session.settle([turn])

    async def _append(self, session: SessionNotes) -> None:
        turn = self._plans.append(session)
        await self.unary.append(session, turn)
        session.settle([turn])

    async def _stop(self, session: SessionNotes) -> None:
        """Runs a long turn, and stops it by another call."""
        turn = self._plans.turn(session, alone=True, num_tokens=self._scale.endless_tokens)
        running = asyncio.create_task(self.unary.run(session, turn))
        try:
            while not (turn.accepted or running.done()):  # noqa: ASYNC110 - notes have no event
                await asyncio.sleep(0.002)
            if turn.end is None and not running.done():
                await asyncio.sleep(self._rng.random() * 0.1)
                await self.unary.cancel(session, turn, discards=self._rng.random() < 0.3)
            await running
        finally:
            running.cancel()
        session.settle([turn])

    async def _fork(self, session: SessionNotes) -> None:
        if not session.history:
            return
        num_turns = self._rng.randint(1, len(session.history))
        fork = await self.unary.fork(session, num_turns, self._draw_id("f"))
        self._tally.counts["forks"] += 1
        self.sessions.append(fork)
        if len(self.sessions) > _MAX_SESSIONS:
            # What the other one shares with it must stay.
            oldest = self.sessions.pop(0)
            await self.auditor.check(oldest)
            await self.unary.delete(oldest)

    async def _rewind(self, session: SessionNotes) -> None:
        if session.history:
            await self.unary.rewind(session, self._rng.randrange(len(session.history) + 1))
            self._tally.counts["rewinds"] += 1

    async def _look(self, session: SessionNotes) -> None:
        """Reads a turn of before, whole and by its events."""
        known = list(session.turns())
        if known:
            turn = self._rng.choice(known)
            kept = await self.unary.get_turn(session, turn)
            in_history = any(turn is other for other in session.history)
            check_turn(kept, turn, in_history=in_history)
            await self._replay(session, turn)

    async def _replay(self, session: SessionNotes, turn: TurnNotes) -> None:
        await self.auditor.replay(session, turn)

    async def _audit(self, session: SessionNotes) -> None:
        await self.auditor.check(session)

    def _draw_turn_id(self) -> str:
        return self._draw_id("t")

    def _draw_id(self, kind: str) -> str:
        self._num_drawn += 1
        return f"{kind}{self._id}-{self._num_drawn}"
