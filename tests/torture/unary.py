"""The calls of one client on its sessions, each tried until the server has given its word."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
from antiphon.v1.session_pb2 import (
    AppendItems,
    AppendTurnRequest,
    CancelTurnRequest,
    CreateSessionRequest,
    DeleteSessionRequest,
    ForkSessionRequest,
    GetSessionRequest,
    GetTurnRequest,
    ListTurnsRequest,
    RewindSessionRequest,
    RunTurnRequest,
    Session,
    StartTurn,
    StreamTurnEventsRequest,
    Turn,
    TurnEvent,
)
from antiphon.v1.session_pb2_grpc import SessionServiceStub
from antiphon.v1.types_pb2 import Tool

from torture.calls import (
    ANSWER_LIMIT_S,
    BrokenError,
    Patience,
    RefusedError,
    insist,
    verdict_of,
)
from torture.session_notes import SessionNotes
from torture.talk import Teller, take_event
from torture.tally import Kind, Tally, ViolationError
from torture.turn_notes import TurnNotes
from torture.victim import Victim


class Unary:
    """Calls that are no conversation."""

    def __init__(
        self, stub: SessionServiceStub, victim: Victim, tally: Tally, rng: random.Random
    ) -> None:
        self._stub = stub
        self._victim = victim
        self._tally = tally
        self._rng = rng

    async def create(
        self, session_id: str, instructions: str, *, tools: Sequence[Tool] = ()
    ) -> Session:
        """Creates a session, as often as it takes, which makes one."""
        request = CreateSessionRequest(
            session_id=session_id,
            session=Session(instructions=instructions, tools=tools, labels={"made": session_id}),
            request_id=self._uuid(),
        )
        first = await self._insist("create", self._stub.CreateSession, request)
        again = await self._insist("create again", self._stub.CreateSession, request)
        if first != again or first.name != f"sessions/{session_id}":
            raise ViolationError(Kind.DOUBLED, f"two answers to one creation: {first} {again}")
        return first

    async def fork(self, session: SessionNotes, num_turns: int, session_id: str) -> SessionNotes:
        """Forks a session behind its first so many turns."""
        at_head = num_turns == len(session.history) and self._rng.random() < 0.5
        turn = session.history[num_turns - 1]
        request = ForkSessionRequest(
            name=session.name,
            turn="" if at_head else session.turn_name(turn),
            session_id=session_id,
            request_id=self._uuid(),
        )
        answer = await self._insist("fork", self._stub.ForkSession, request)
        told = (answer.name, answer.parent_session, answer.fork_turn, answer.num_turns)
        asked = (f"sessions/{session_id}", session.name, session.turn_name(turn), num_turns)
        if told != asked:
            raise ViolationError(Kind.LINEAGE, f"a fork is {told}, asked was {asked}")
        return session.forked(answer.name, num_turns)

    async def rewind(self, session: SessionNotes, num_turns: int) -> None:
        """Takes a session back to its first so many turns."""
        request = RewindSessionRequest(
            name=session.name,
            to=session.point(num_turns),
            request_id=self._uuid(),
            cancel_active=self._rng.random() < 0.5,
        )
        answer = await self._insist("rewind", self._stub.RewindSession, request)
        session.rewind(num_turns)
        if (answer.head_turn, answer.num_turns) != (session.head_name, num_turns):
            raise ViolationError(
                Kind.LINEAGE,
                f"rewound to {answer.head_turn} with {answer.num_turns} turns, asked was"
                f" {session.head_name} with {num_turns}",
            )

    async def append(self, session: SessionNotes, turn: TurnNotes) -> None:
        """Appends; the turn has ended then."""
        assert isinstance(turn.frame, AppendItems)
        request = AppendTurnRequest(session=session.name, append=turn.frame)
        answer = await self._insist("append", self._stub.AppendTurn, request)
        if answer.state != Turn.STATE_COMPLETED or answer.input != turn.frame.items:
            raise ViolationError(Kind.LOST, f"an append was answered with {answer}")
        turn.accepted = True
        self._tally.counts["turns_acknowledged"] += 1
        end = TurnEvent(turn_id=turn.turn_id, first_sequence=2, sequence=2, epoch=answer.epoch)
        end.completed.kept_sequence = 2
        turn.end = end

    async def run(self, session: SessionNotes, turn: TurnNotes) -> None:
        """Runs a turn to its end, by RunTurn first, then by that again or by its events."""
        assert isinstance(turn.frame, StartTurn)
        request = RunTurnRequest(session=session.name, turn=turn.frame)

        async def go_on() -> None:
            if turn.accepted and self._rng.random() < 0.7:
                await self.follow(session, turn)
            else:
                turn.begin_again()
                await self._feed(turn, lambda: self._stub.RunTurn(request, wait_for_ready=True))

        await self._until_end(turn, go_on)

    async def follow_to_end(self, session: SessionNotes, turn: TurnNotes) -> None:
        """Reads a turn's events to their end, however often they break off."""
        await self._until_end(turn, lambda: self.follow(session, turn))

    async def _until_end(self, turn: TurnNotes, go_on: Callable[[], Awaitable[None]]) -> None:
        patience = Patience(self._tally, turn.turn_id)
        while turn.end is None:
            try:
                await go_on()
            except (BrokenError, TimeoutError) as error:
                await patience.rest(error)
            except RefusedError as refused:
                if turn.end is None:
                    if not refused.passes:
                        raise
                    await patience.rest(refused)

    async def follow(self, session: SessionNotes, turn: TurnNotes) -> None:
        """Reads a turn's events from where its notes stand, to their end or until they break."""
        turn.go_on()
        cursor = turn.cursor()
        request = StreamTurnEventsRequest(
            name=session.turn_name(turn), after_sequence=cursor.sequence, epoch=cursor.epoch
        )
        self._tally.counts["streams_resumed"] += 1
        await self._feed(turn, lambda: self._stub.StreamTurnEvents(request, wait_for_ready=True))
        if turn.end is None:
            raise ViolationError(
                Kind.UNRESUMED, f"{turn.turn_id}: its events ended with OK before it did"
            )

    async def read_and_follow(self, session: SessionNotes, turn: TurnNotes) -> None:
        """Reads a turn that may run, and follows it from there: the two must fit together."""
        request = GetTurnRequest(name=session.turn_name(turn))
        patience = Patience(self._tally, f"watching {turn.turn_id}")
        seen = TurnNotes(turn.turn_id, turn.frame)
        seen.stopped = True  # Whoever asked for the turn judges whether it may fail.
        while seen.end is None:
            try:
                read = await self._stub.GetTurn(request, timeout=ANSWER_LIMIT_S)
                if not (read.last_sequence and read.state == Turn.STATE_RUNNING):
                    return
                seen.stand_at(read)
                await self.follow(session, seen)
            except grpc.aio.AioRpcError as error:
                verdict = verdict_of(error)
                if isinstance(verdict, RefusedError) and not verdict.passes:
                    if verdict.reason in ("TURN_NOT_FOUND", "SESSION_NOT_FOUND"):
                        return  # It was not accepted yet.
                    raise ViolationError(Kind.REFUSED, f"watching: {verdict}") from error
                await patience.rest(verdict)
            except RefusedError as refused:
                if not refused.passes:
                    raise
                await patience.rest(refused)
            except (BrokenError, TimeoutError) as error:
                await patience.rest(error)
        self._tally.counts["turns_watched"] += 1
        turn.compare(seen)

    async def cancel(self, session: SessionNotes, turn: TurnNotes, *, discards: bool) -> None:
        """Stops a turn; it has ended then."""
        turn.stopped = True
        request = CancelTurnRequest(name=session.turn_name(turn), discard_partial=discards)
        answer = await self._insist("cancel", self._stub.CancelTurn, request)
        if answer.state not in (Turn.STATE_COMPLETED, Turn.STATE_FAILED):
            raise ViolationError(Kind.LOST, f"{turn.turn_id} was cancelled and is {answer.state}")

    async def delete(self, session: SessionNotes) -> None:
        """Deletes a session."""
        request = DeleteSessionRequest(name=session.name)
        try:
            await self._insist("delete", self._stub.DeleteSession, request)
        except RefusedError as refused:
            if refused.reason != "SESSION_NOT_FOUND":  # The answer to an earlier try was lost.
                raise

    async def get(self, session: SessionNotes) -> Session:
        """Reads a session."""
        request = GetSessionRequest(name=session.name)
        return await self._insist("get", self._stub.GetSession, request)

    async def get_turn(self, session: SessionNotes, turn: TurnNotes) -> Turn:
        """Reads a turn."""
        request = GetTurnRequest(name=session.turn_name(turn))
        return await self._insist("get turn", self._stub.GetTurn, request)

    async def list_turns(self, session: SessionNotes, *, show_all: bool) -> list[Turn]:
        """Reads all turns, page by page."""
        turns: list[Turn] = []
        token = ""
        while True:
            request = ListTurnsRequest(
                session=session.name, page_size=7, page_token=token, show_all=show_all
            )
            page = await self._insist("list turns", self._stub.ListTurns, request)
            turns += page.turns
            token = page.next_page_token
            if not token:
                return turns

    async def _feed(
        self, turn: TurnNotes, make_call: Callable[[], AsyncIterator[TurnEvent]]
    ) -> None:
        """Takes a call's events in. Raises BrokenError, RefusedError or TimeoutError."""
        life = self._victim.num_lives
        iterator = aiter(make_call())
        teller = Teller(self._victim, life)
        try:
            while True:
                event = await asyncio.wait_for(anext(iterator), ANSWER_LIMIT_S)
                take_event(turn, event, teller=teller, tally=self._tally)
        except StopAsyncIteration:
            return
        except grpc.aio.AioRpcError as error:
            raise verdict_of(error) from error

    async def _insist(self, what, call, request):  # type: ignore[no-untyped-def]
        return await insist(
            self._tally, what, lambda: call(request, timeout=ANSWER_LIMIT_S, wait_for_ready=True)
        )

    def _uuid(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"
