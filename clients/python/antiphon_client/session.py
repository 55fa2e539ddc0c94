"""A session: many turns over one stream, which is opened again where it breaks."""

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self
from uuid import uuid4

from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.channel import Connection, duration
from antiphon_client.errors import ServerError
from antiphon_client.link import SessionLink, Watcher
from antiphon_client.prompts import Says, before, items_of
from antiphon_client.session_calls import SessionCalls
from antiphon_client.tools import (
    MAX_TURNS,
    AsyncHandler,
    Handler,
    answer_calls_async,
    config_behind_results,
)
from antiphon_client.turn import Turn


class Session:
    """Drives one session. Use it as an asynchronous context manager.

    Turns may be sent while others run; the server works on them in order. Where the stream breaks
    or the server restarts, the session goes on by itself: no turn runs twice, and no character
    of an answer is lost or repeated. Only where that fails for longer than the options'
    `reconnect_timeout_s`, or the server refuses, do turns and later calls raise ServerError.
    """

    def __init__(
        self,
        connection: Connection,
        opening: session_pb2.OpenSession,
        watcher: Watcher | None = None,
    ) -> None:
        """Sets it up; `watcher` is told of every interruption and of its end."""
        self._link = SessionLink(connection, opening, watcher)
        self._calls = SessionCalls(connection)

    @property
    def name(self) -> str:
        """`sessions/{session}`."""
        return self._link.info.name

    @property
    def info(self) -> session_pb2.Session:
        """The session as the server told it last; empty until it is entered."""
        return self._link.info

    @property
    def go_away(self) -> types_pb2.GoAway | None:
        """Set where the server is about to end the stream."""
        return self._link.go_away

    @property
    def attached(self) -> bool:
        """Whether the stream stands now."""
        return self._link.is_attached

    @property
    def ended(self) -> ServerError | None:
        """Why nothing can be sent any more; the session may still be resumed by its name."""
        return self._link.ended

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Attaches to the session, or creates it.

        Raises:
            ServerError: it was refused, or there was no answer in the options' time.
        """
        await self._link.open()

    async def send(
        self,
        says: Says = (),
        config: types_pb2.GenerationConfig | None = None,
        *,
        timeout_s: float | None = None,
        turn_id: str = "",
    ) -> Turn:
        """Starts a turn that adds `says` and asks for an answer; returns it at once.

        The server fails the turn where it has not ended after `timeout_s`.
        """
        timeout = None if timeout_s is None else duration(timeout_s)
        return await self.start(
            session_pb2.StartTurn(
                turn_id=turn_id,
                items=items_of(says),
                config=config,
                timeout=timeout,
            )
        )

    async def interrupt(
        self, says: Says = (), config: types_pb2.GenerationConfig | None = None
    ) -> Turn:
        """Stops what runs and what is queued, then starts a turn as `send` does.

        What was read of the running turn stays in the history as its output.
        """
        return await self.start(
            session_pb2.StartTurn(
                items=items_of(says),
                config=config,
                if_busy=session_pb2.StartTurn.IF_BUSY_INTERRUPT,
            )
        )

    async def continue_answer(self, config: types_pb2.GenerationConfig | None = None) -> Turn:
        """Goes on with the last answer, which was cut by a limit or stopped."""
        return await self.start(session_pb2.StartTurn(config=config, continue_answer=True))

    async def use_tools(
        self,
        says: Says,
        handlers: Mapping[str, Handler | AsyncHandler],
        config: types_pb2.GenerationConfig | None = None,
        *,
        max_turns: int = MAX_TURNS,
    ) -> AsyncIterator[Turn]:
        """Yields a turn that `send` starts, and turns behind it until one calls no tool.

        Whoever gets a turn may read it; what is left of it is read before its calls are answered.
        Behind `max_turns` turns it ends too, though the last has calls: see `Turn.open_calls`.

        Args:
            says: What to add to the conversation.
            handlers: What answers calls, by the tools' names; a plain function runs on the event
                loop. What they raise ends it.
            config: Of each turn, but that one that has to call has to in the first turn only.
            max_turns: At least 1.

        Raises:
            LookupError: a tool was called that has no handler.
        """
        turn, later = await self.send(says, config), config_behind_results(config)
        for num_left in reversed(range(max_turns)):
            yield turn
            await turn.end()
            if not (turn.open_calls and num_left):
                return
            turn = await self.send(await answer_calls_async(turn.open_calls, handlers), later)

    async def start(self, turn: session_pb2.StartTurn) -> Turn:
        """Starts a turn with all that the contract offers; an empty id is filled in."""
        filled = session_pb2.StartTurn()
        filled.CopyFrom(turn)
        filled.turn_id = turn.turn_id or uuid4().hex
        frame = session_pb2.ConverseRequest(frame_id=filled.turn_id, generate=filled)
        return await self._follow(filled.turn_id, frame)

    async def append(self, says: Says, *, turn_id: str = "") -> Turn:
        """Adds items without asking for an answer; the turn ends once they are durable."""
        appended = session_pb2.AppendItems(items=items_of(says), turn_id=turn_id or uuid4().hex)
        frame = session_pb2.ConverseRequest(frame_id=appended.turn_id, append=appended)
        return await self._follow(appended.turn_id, frame)

    async def regenerate(self, config: types_pb2.GenerationConfig | None = None) -> Turn:
        """Answers the last turn's input again, in its place.

        Raises:
            ValueError: the history is empty.
        """
        async for last in self._calls.list_turns(self.name, newest_first=True):
            if last.HasField("output"):
                turn = session_pb2.StartTurn(
                    items=last.input, config=config, rewind_to=before(last)
                )
                return await self.start(turn)
            return await self.send((), config)
        raise ValueError(f"{self.name} has no turn yet; send one first")

    async def rewind(
        self, to: session_pb2.HistoryPoint, *, cancel_active: bool = False
    ) -> session_pb2.Session:
        """Takes the session back to a place in its history; see `after` and `beginning`."""
        return await self._calls.rewind(self.name, to, cancel_active=cancel_active)

    async def fork(self, *, turn_name: str = "", session_id: str = "") -> session_pb2.Session:
        """Makes another session that shares the history up to a turn; default: the last ended."""
        return await self._calls.fork(self.name, turn_name=turn_name, session_id=session_id)

    def turns(self, *, newest_first: bool = False) -> AsyncIterator[session_pb2.Turn]:
        """Yields the history's turns."""
        return self._calls.list_turns(self.name, newest_first=newest_first)

    async def close(self) -> None:
        """Waits a while for turns that run, then ends the stream; the session stays. Idempotent.

        Turns still running then go by their `on_disconnect`: they go on where nothing else was
        said.
        """
        await self._link.close()

    async def _follow(self, turn_id: str, frame: session_pb2.ConverseRequest) -> Turn:
        feed = await self._link.start(turn_id, frame)

        async def cancel(discard_partial: bool) -> None:
            await self._link.cancel(
                session_pb2.CancelRequest(turn_id=turn_id, discard_partial=discard_partial)
            )

        return Turn(turn_id, news=feed, cancel=cancel)
