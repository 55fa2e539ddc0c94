"""One person's conversation with a model, at a terminal or through a pipe."""

import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final
from uuid import uuid4

from antiphon.v1 import session_pb2, types_pb2

from antiphon_cli.failures import report
from antiphon_cli.outage_note import OutageNote
from antiphon_cli.outcome import complain
from antiphon_cli.session_list import session_line
from antiphon_cli.session_text import full_name, short_name, turn_text, turns_text
from antiphon_cli.slash_commands import Command, WrongCommand, help_text, read_command
from antiphon_cli.terminal import LineReader, mutter, note, say
from antiphon_client import (
    Cancelled,
    ServerError,
    SyncClient,
    SyncSession,
    SyncTurn,
    TurnRestarted,
    Unavailable,
    before,
)

MAX_LISTED_SESSIONS: Final = 20

_STOPPED: Final = {
    types_pb2.FINISH_REASON_CANCELLED: "(stopped)",
    types_pb2.FINISH_REASON_MAX_OUTPUT_TOKENS: "(cut at --max-tokens; /continue goes on)",
    types_pb2.FINISH_REASON_CONTEXT_FULL: "(the model's context is full; /new starts another)",
    types_pb2.FINISH_REASON_TIME_LIMIT: "(cut at the time limit; /continue goes on)",
}


class Conversation:
    """Reads lines and answers them. The session is created with the first message."""

    def __init__(
        self,
        client: SyncClient,
        target: str,
        *,
        settings: session_pb2.Session,
        config: types_pb2.GenerationConfig,
        flags_again: str = "",
    ) -> None:
        """Begins nothing yet.

        Args:
            client: Connected to the server.
            target: The server, as the person named it.
            settings: Of sessions that are created.
            config: Of turns.
            flags_again: What a later command needs to come to the server, as it is typed.
        """
        self._client = client
        self._target = target
        self._settings = settings
        self._config = config
        self._session: SyncSession | None = None
        self._name = ""
        self._flags_again = flags_again
        self._outage = OutageNote()
        self._commands: dict[str, Callable[[str], None]] = {
            "/again": self._again,
            "/continue": self._continue,
            "/fork": self._fork,
            "/help": lambda _: note(help_text()),
            "/history": self._show_history,
            "/new": self._start_over,
            "/rewind": self._rewind,
            "/sessions": self._list_sessions,
        }

    def begin(self, name: str | None, *, takes_over: bool = False) -> None:
        """Greets, and attaches to the conversation that `name` names, if any.

        Raises:
            ServerError: no server answers, or there is no such conversation.
        """
        served = ", ".join(model.name for model in self._client.list_models())
        note(f"{served} at {self._target}. /help lists commands, Ctrl-D leaves.")
        if name:
            self._name = full_name(name)
            session = self._attach(takes_over=takes_over)
            note(f"{turns_text(session.info.num_turns)} so far; /history shows what was said.")

    def talk(self, lines: LineReader) -> int:
        """Reads lines and answers them until the input ends; returns the exit status.

        It tells of a line that failed where lines come through a pipe; a person has seen that.
        """
        is_person = sys.stdin.isatty()
        status = 0
        while True:
            try:
                line = lines.read("> " if is_person else "").strip()
                command = read_command(line)
            except EOFError:
                return status
            except UnicodeError:
                complain(f"that is no text in {sys.stdin.encoding}; nothing was sent")
                continue
            except WrongCommand as error:
                note(str(error))
                continue
            except KeyboardInterrupt:
                note("(Ctrl-D leaves)")
                continue
            if command is not None and command.name == "/quit":
                return status
            try:
                self._take(line, command)
            except ServerError as error:
                failed = report(error, self._target)
                status = status if is_person else failed
                if isinstance(error, Unavailable):
                    note("Say it again once the server is back; the conversation is kept there.")

    def leave(self) -> None:
        """Detaches and says how to come back."""
        if self._session is not None:
            self._session.close()
        if self._name:
            again = f"antiphon chat --session {short_name(self._name)}{self._flags_again}"
            note(f"\nGo on with: {again}")

    def _take(self, line: str, command: Command | None) -> None:
        if command is not None:
            self._commands[command.name](command.argument)
        elif line:
            self._ask(line)

    def _ask(self, text: str) -> None:
        turn_id = uuid4().hex
        try:
            turn = self._attach().send(text, self._config, turn_id=turn_id)
        except KeyboardInterrupt:
            if self._name:
                with suppress(ServerError):  # It may never have come there.
                    self._client.sessions.cancel_turn(f"{self._name}/turns/{turn_id}")
            note("(stopped)")
            return
        self._tell(turn)

    def _tell(self, turn: SyncTurn) -> None:
        try:
            with self._outage.awaiting():
                self._show(turn)
        except Cancelled:
            note("(stopped)")
        except KeyboardInterrupt:  # The second; it may come while the first is told.
            note("\n(no longer waiting for its end)")
        except ServerError:
            say("\n")
            raise

    def _show(self, turn: SyncTurn) -> None:
        pieces = turn.pieces()
        stopping = is_thinking = False
        while True:
            try:
                for piece in pieces:
                    is_thinking = _show_piece(piece, is_thinking=is_thinking)
                break
            except TurnRestarted as restarted:
                note("\n(the server lost its answer and has begun again)")
                say(restarted.kept_text)
                pieces = turn.pieces()
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
                if self._outage.is_lost:
                    note("\n(stopping once the server is back; Ctrl-C again does not wait)")
                turn.cancel()
        say("\n")
        ended = turn.completed
        if ended is not None and ended.finish_reason in _STOPPED:
            note(_STOPPED[ended.finish_reason])

    def _attach(self, *, takes_over: bool = False) -> SyncSession:
        """Returns the session's stream; opens it where it was lost for good, or first."""
        if self._session is not None and self._session.ended is None:
            return self._session
        watcher = self._outage.watch
        session = (
            self._client.resume_session(self._name, take_over=takes_over, watcher=watcher)
            if self._name
            else self._client.new_session(self._settings, watcher=watcher)
        )
        session.open()
        self._session, self._name = session, session.name
        return session

    def _move(self, name: str) -> None:
        """Leaves the conversation for another, or for one that is not begun."""
        if self._session is not None:
            self._session.close()
        self._session, self._name = None, name

    def _has_begun(self) -> bool:
        if not self._name:
            note("Nothing was said yet.")
        return bool(self._name)

    def _again(self, _: str) -> None:
        if not self._has_begun():
            return
        try:
            turn = self._attach().regenerate(self._config)
        except ValueError:
            note("Nothing was said yet.")
            return
        self._tell(turn)

    def _continue(self, _: str) -> None:
        if not self._has_begun():
            return
        turns = self._client.sessions.list_turns(self._name, newest_first=True, page_size=1)
        last = next(turns, session_pb2.Turn())
        if last.output.finish_reason == types_pb2.FINISH_REASON_STOP:
            note("The last answer came to its own end; there is nothing to go on with.")
            return
        self._tell(self._attach().continue_answer(self._config))

    def _fork(self, session_id: str) -> None:
        if not self._has_begun():
            return
        left = self._name
        fork = self._client.sessions.fork(left, session_id=session_id)
        self._move(fork.name)
        self._attach()
        note(f"Now in {short_name(fork.name)}; {short_name(left)} stays as it was.")

    def _rewind(self, argument: str) -> None:
        if not self._has_begun():
            return
        if argument and not (argument.isdecimal() and int(argument)):
            note(f"/rewind takes how many messages to take back, from 1; {argument} is none.")
            return
        wanted = int(argument or 1)
        turns = self._client.sessions.list_turns(self._name, newest_first=True)
        dropped = list(islice(turns, wanted))
        if not dropped:
            note("Nothing was said yet.")
            return
        if len(dropped) < wanted:
            note(f"Only {len(dropped)} can be taken back.")
            return
        self._client.sessions.rewind(self._name, before(dropped[-1]))
        note(f"Taken back: {turn_text(dropped[-1]).splitlines()[0]:.60}")

    def _list_sessions(self, _: str) -> None:
        sessions = self._client.sessions.list()
        for session in islice(sessions, MAX_LISTED_SESSIONS):
            mark = "*" if session.name == self._name else " "
            print(f"{mark} {session_line(self._client, session)}")
        if next(sessions, None) is not None:
            note("`antiphon session list` shows the others.")

    def _start_over(self, _: str) -> None:
        self._move("")
        note("A new conversation.")

    def _show_history(self, _: str) -> None:
        if self._has_begun():
            for turn in self._client.sessions.list_turns(self._name):
                print(turn_text(turn))


def _show_piece(piece: types_pb2.Delta, *, is_thinking: bool) -> bool:
    """Writes a piece of thinking or answer; returns whether the model still thinks."""
    if piece.channel == types_pb2.OUTPUT_CHANNEL_REASONING:
        mutter(piece.text)
        return True
    if piece.channel == types_pb2.OUTPUT_CHANNEL_CONTENT:
        if is_thinking:
            mutter("\n")
        say(piece.text)
        return False
    return is_thinking
