"""Sessions and turns for programs without an event loop; see Session and Turn."""

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from antiphon.v1 import session_pb2, types_pb2

from antiphon_client.archive import Archive
from antiphon_client.blocking import CallLoop, Each
from antiphon_client.errors import ServerError
from antiphon_client.prompts import Says
from antiphon_client.session import Session
from antiphon_client.session_calls import SessionCalls
from antiphon_client.tools import MAX_TURNS, Handler, answer_calls, config_behind_results
from antiphon_client.turn import Turn
from antiphon_client.watching import Happening, SessionWatch


class SyncTurn:
    """One turn of a session; see Turn."""

    def __init__(self, loop: CallLoop, turn: Turn) -> None:
        self._loop = loop
        self._turn = turn

    @property
    def turn_id(self) -> str:
        """Its id in its session."""
        return self._turn.turn_id

    @property
    def started(self) -> types_pb2.GenerationStarted | None:
        """What was known before the first token; None until then."""
        return self._turn.started

    @property
    def completed(self) -> session_pb2.TurnCompleted | None:
        """How it ended; None until then."""
        return self._turn.completed

    @property
    def cursor(self) -> session_pb2.TurnCursor:
        """How far it has been read."""
        return self._turn.cursor

    @property
    def tool_calls(self) -> list[types_pb2.ToolCall]:
        """The tool calls that are complete so far."""
        return self._turn.tool_calls

    @property
    def open_calls(self) -> list[types_pb2.ToolCall]:
        """The calls that the next turn must bring results of; known once it has ended."""
        return self._turn.open_calls

    def __iter__(self) -> Iterator[session_pb2.TurnEvent]:
        return Each(self._loop, self._turn)

    def pieces(self) -> Iterator[types_pb2.Delta]:
        """Yields all that has text: of the thinking, the answer and calls, told by `channel`."""
        return Each(self._loop, self._turn.pieces())

    def end(self) -> None:
        """Reads to the end, whatever comes."""
        self._loop.run(self._turn.end())

    def text(self) -> Iterator[str]:
        """Yields the answer's pieces."""
        return Each(self._loop, self._turn.text())

    def answer(self) -> str:
        """Reads to the end and returns the rest of the answer."""
        return self._loop.run(self._turn.answer())

    def cancel(self, *, discard_partial: bool = False) -> None:
        """Asks for an early end, which the events then tell."""
        self._loop.run(self._turn.cancel(discard_partial=discard_partial))


class SyncSession:
    """A session over one stream; see Session."""

    def __init__(self, loop: CallLoop, session: Session) -> None:
        self._loop = loop
        self._session = session

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """`sessions/{session}`."""
        return self._session.name

    @property
    def info(self) -> session_pb2.Session:
        """The session as the server told it last."""
        return self._session.info

    @property
    def attached(self) -> bool:
        """Whether the stream stands now."""
        return self._session.attached

    @property
    def ended(self) -> ServerError | None:
        """Why nothing can be sent any more; the session may still be resumed by its name."""
        return self._session.ended

    @property
    def go_away(self) -> types_pb2.GoAway | None:
        """Set where the server is about to end the stream."""
        return self._session.go_away

    def open(self) -> None:
        """Attaches to the session, or creates it."""
        try:
            self._loop.run(self._session.open())
        except KeyboardInterrupt:
            self.close()  # Nobody would close a session that was never entered.
            raise

    def send(
        self,
        says: Says = (),
        config: types_pb2.GenerationConfig | None = None,
        *,
        timeout_s: float | None = None,
        turn_id: str = "",
    ) -> SyncTurn:
        """Starts a turn that adds `says` and asks for an answer."""
        sending = self._session.send(says, config, timeout_s=timeout_s, turn_id=turn_id)
        return SyncTurn(self._loop, self._loop.run(sending))

    def use_tools(
        self,
        says: Says,
        handlers: Mapping[str, Handler],
        config: types_pb2.GenerationConfig | None = None,
        *,
        max_turns: int = MAX_TURNS,
    ) -> Iterator[SyncTurn]:
        """Yields turns until one calls no tool; see Session.use_tools. Handlers run in between."""
        turn, later = self.send(says, config), config_behind_results(config)
        for num_left in reversed(range(max_turns)):
            yield turn
            turn.end()
            if not (turn.open_calls and num_left):
                return
            turn = self.send(answer_calls(turn.open_calls, handlers), later)

    def append(self, says: Says, *, turn_id: str = "") -> SyncTurn:
        """Adds items without asking for an answer."""
        appending = self._session.append(says, turn_id=turn_id)
        return SyncTurn(self._loop, self._loop.run(appending))

    def start(self, turn: session_pb2.StartTurn) -> SyncTurn:
        """Starts a turn with all that the contract offers."""
        return SyncTurn(self._loop, self._loop.run(self._session.start(turn)))

    def interrupt(
        self, says: Says = (), config: types_pb2.GenerationConfig | None = None
    ) -> SyncTurn:
        """Stops what runs and what is queued, then starts a turn as `send` does."""
        return SyncTurn(self._loop, self._loop.run(self._session.interrupt(says, config)))

    def continue_answer(self, config: types_pb2.GenerationConfig | None = None) -> SyncTurn:
        """Goes on with the last answer, which was cut by a limit or stopped."""
        return SyncTurn(self._loop, self._loop.run(self._session.continue_answer(config)))

    def regenerate(self, config: types_pb2.GenerationConfig | None = None) -> SyncTurn:
        """Answers the last turn's input again, in its place."""
        return SyncTurn(self._loop, self._loop.run(self._session.regenerate(config)))

    def rewind(
        self, to: session_pb2.HistoryPoint, *, cancel_active: bool = False
    ) -> session_pb2.Session:
        """Takes the session back to a place in its history; see `after` and `beginning`."""
        return self._loop.run(self._session.rewind(to, cancel_active=cancel_active))

    def fork(self, *, turn_name: str = "", session_id: str = "") -> session_pb2.Session:
        """Makes another session that shares the history up to a turn; default: the last ended."""
        forking = self._session.fork(turn_name=turn_name, session_id=session_id)
        return self._loop.run(forking)

    def turns(self, *, newest_first: bool = False) -> Iterator[session_pb2.Turn]:
        """Yields the history's turns."""
        return Each(self._loop, self._session.turns(newest_first=newest_first))

    def close(self) -> None:
        """Ends the stream; the session stays. Idempotent."""
        self._loop.run(self._session.close())


class SyncSessionWatch:
    """Everything that happens in a session that others drive; see SessionWatch."""

    def __init__(self, loop: CallLoop, watch: SessionWatch) -> None:
        self._loop = loop
        self._watch = watch

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def info(self) -> session_pb2.Session:
        """The session as the server told it last."""
        return self._watch.info

    def open(self) -> None:
        """Begins to watch."""
        self._loop.run(self._watch.open())

    def close(self) -> None:
        """Ends the watch. Idempotent."""
        self._loop.run(self._watch.close())

    def __iter__(self) -> Iterator[Happening]:
        return Each(self._loop, self._watch)


class SyncSessionCalls:
    """The calls on sessions and turns that need no stream of their own; see SessionCalls."""

    def __init__(self, loop: CallLoop, calls: SessionCalls) -> None:
        self._loop = loop
        self._calls = calls

    def create(
        self,
        settings: session_pb2.Session | None = None,
        *,
        session_id: str = "",
        items: Says = (),
    ) -> session_pb2.Session:
        """Creates a session; `items` are the start of its history."""
        creating = self._calls.create(settings, session_id=session_id, items=items)
        return self._loop.run(creating)

    def get(self, name: str) -> session_pb2.Session:
        """Returns `sessions/{session}` as it stands."""
        return self._loop.run(self._calls.get(name))

    def list(self, labels: Mapping[str, str] | None = None) -> Iterator[session_pb2.Session]:
        """Yields the sessions that carry all these labels, latest creation first."""
        return Each(self._loop, self._calls.list(labels))

    def update(self, session: session_pb2.Session, fields: Iterable[str]) -> session_pb2.Session:
        """Changes these fields to their values in `session`; with an etag, only if it holds."""
        return self._loop.run(self._calls.update(session, fields))

    def delete(self, name: str, *, etag: str = "") -> None:
        """Cancels a running turn and deletes the session; with an etag, only if it holds."""
        self._loop.run(self._calls.delete(name, etag=etag))

    def fork(self, name: str, *, turn_name: str = "", session_id: str = "") -> session_pb2.Session:
        """Makes a session that shares the history up to this turn; default: the last completed."""
        return self._loop.run(self._calls.fork(name, turn_name=turn_name, session_id=session_id))

    def rewind(
        self,
        name: str,
        to: session_pb2.HistoryPoint,
        *,
        etag: str = "",
        cancel_active: bool = False,
    ) -> session_pb2.Session:
        """Takes the session back to a place in its history; see `after` and `beginning`."""
        return self._loop.run(self._calls.rewind(name, to, etag=etag, cancel_active=cancel_active))

    def append_turn(self, name: str, says: Says, *, turn_id: str = "") -> session_pb2.Turn:
        """Adds items to the history without asking for an answer, and without a stream."""
        return self._loop.run(self._calls.append_turn(name, says, turn_id=turn_id))

    def run_turn(self, name: str, turn: session_pb2.StartTurn) -> SyncTurn:
        """Starts a turn of `sessions/{session}` without attaching to it and returns its news."""
        return SyncTurn(self._loop, self._loop.call(lambda: self._calls.run_turn(name, turn)))

    def stream_turn_events(
        self, turn_name: str, cursor: session_pb2.TurnCursor | None = None
    ) -> SyncTurn:
        """Follows `sessions/{session}/turns/{turn}` from a cursor, or its start, to its end."""

        def follow() -> Turn:
            return self._calls.stream_turn_events(turn_name, cursor)

        return SyncTurn(self._loop, self._loop.call(follow))

    def cancel_turn(self, turn_name: str, *, discard_partial: bool = False) -> session_pb2.Turn:
        """Stops `sessions/{session}/turns/{turn}` and returns it once it has ended."""
        return self._loop.run(self._calls.cancel_turn(turn_name, discard_partial=discard_partial))

    def get_turn(self, turn_name: str) -> session_pb2.Turn:
        """Returns `sessions/{session}/turns/{turn}` with its input and output."""
        return self._loop.run(self._calls.get_turn(turn_name))

    def list_turns(
        self,
        name: str,
        *,
        newest_first: bool = False,
        show_all: bool = False,
        page_size: int = 0,
    ) -> Iterator[session_pb2.Turn]:
        """Yields a session's turns; with `show_all` also failed and superseded ones.

        They are fetched `page_size` at a time, from 1 to 1000; 0: as many as the server likes.
        """
        turns = self._calls.list_turns(
            name, newest_first=newest_first, show_all=show_all, page_size=page_size
        )
        return Each(self._loop, turns)

    def export(self, name: str) -> Iterator[str]:
        """Yields `sessions/{session}` with its history as lines of text; see `archive`."""
        return Each(self._loop, self._calls.export(name))

    def restore(self, archive: Archive, *, session_id: str = "") -> session_pb2.Session:
        """Makes a session with an exported one's settings and history, and returns it."""
        return self._loop.run(self._calls.restore(archive, session_id=session_id))
