"""`antiphon chat`: a conversation in the terminal, with its history on the server."""

import argparse
import sys
from contextlib import suppress
from typing import Final
from uuid import uuid4

from antiphon.v1 import session_pb2, types_pb2

from antiphon_cli.config_flags import add_config, add_target, config_of
from antiphon_cli.failures import explain, report
from antiphon_cli.outcome import WRONG_USE, complain
from antiphon_cli.terminal import LineReader, note, say, visible
from antiphon_client import (
    Cancelled,
    NotFound,
    ServerError,
    SyncClient,
    SyncSession,
    SyncTurn,
    Unavailable,
)

DESCRIPTION = """\
Talks to a model. The history is kept on the server: leave, come back with --session, go on.

Ctrl-C stops the answer, Ctrl-D leaves. /help, /new, /history and /quit are commands."""
EXAMPLES = """\
examples:
  antiphon chat
  antiphon chat --instructions "Answer in one sentence"
  antiphon chat --session 3f2a9c
  antiphon chat --target 10.0.0.5:50051 --temperature 0
"""

_HELP: Final = """\
/new      start another conversation
/history  show this one
/quit     leave, as Ctrl-D does
Ctrl-C    stop the answer"""
_STOPPED: Final = {
    types_pb2.FINISH_REASON_CANCELLED: "(stopped)",
    types_pb2.FINISH_REASON_MAX_OUTPUT_TOKENS: "(cut at --max-tokens)",
    types_pb2.FINISH_REASON_CONTEXT_FULL: "(the model's context is full; /new starts another)",
    types_pb2.FINISH_REASON_TIME_LIMIT: "(cut at the time limit)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_target(parser)
    parser.add_argument("--session", metavar="NAME", help="go on with this conversation")
    parser.add_argument(
        "--instructions", metavar="TEXT", default="", help="how the model should behave"
    )
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Talks until the person leaves; returns the exit status."""
    if arguments.session and arguments.instructions:
        complain("--instructions are for a new conversation; leave them or --session out")
        return WRONG_USE
    try:
        config = config_of(arguments)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    settings = session_pb2.Session(model=arguments.model, instructions=arguments.instructions)
    with SyncClient(arguments.target) as client:
        chat = Chat(client, arguments.target, settings=settings, config=config)
        try:
            chat.begin(arguments.session)
        except ServerError as error:
            return report(error, arguments.target)
        try:
            chat.talk(LineReader())
        finally:
            chat.leave()
    return 0


class Chat:
    """One person's conversation. The session is created with the first message."""

    def __init__(
        self,
        client: SyncClient,
        target: str,
        *,
        settings: session_pb2.Session,
        config: types_pb2.GenerationConfig,
    ) -> None:
        self._client = client
        self._target = target
        self._settings = settings
        self._config = config
        self._session: SyncSession | None = None
        self._name = ""

    def begin(self, name: str | None) -> None:
        """Greets, and attaches to the conversation that `name` names, if any.

        Raises:
            ServerError: no server answers, or there is no such conversation.
        """
        served = ", ".join(model.name for model in self._client.list_models())
        note(f"{served} at {self._target}. /help lists commands, Ctrl-D leaves.")
        if name:
            self._name = name if name.startswith("sessions/") else f"sessions/{name}"
            note(f"{self._attach().info.num_turns} turns so far; /history shows them.")

    def talk(self, lines: LineReader) -> None:
        """Reads lines and answers them until the input ends."""
        while True:
            try:
                line = lines.read("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            except UnicodeError:
                complain(f"that is no text in {sys.stdin.encoding}; nothing was sent")
                continue
            except KeyboardInterrupt:
                note("(Ctrl-D leaves)")
                continue
            if line in ("/quit", "/exit"):
                return
            try:
                self._take(line)
            except ServerError as error:
                complain(explain(error, self._target))
                if isinstance(error, Unavailable):
                    note("Say it again once the server is back; the conversation is kept there.")

    def leave(self) -> None:
        """Detaches and says how to come back."""
        if self._session is not None:
            self._session.close()
        if self._name:
            note(f"\nGo on with: antiphon chat --session {self._name.removeprefix('sessions/')}")

    def _take(self, line: str) -> None:
        match line:
            case "":
                return
            case "/help":
                note(_HELP)
            case "/new":
                self._start_over()
            case "/history":
                self._show_history()
            case _ if line.startswith("/") and " " not in line:
                note(f"There is no command {line}; /help lists them.")
            case _:
                self._ask(line)

    def _ask(self, text: str) -> None:
        turn_id = uuid4().hex
        try:
            turn = self._attach().send(text, self._config, turn_id=turn_id)
        except KeyboardInterrupt:
            with suppress(NotFound):
                self._client.sessions.cancel_turn(f"{self._name}/turns/{turn_id}")
            note("(stopped)")
            return
        try:
            self._show(turn)
        except Cancelled:
            note("(stopped)")
        except ServerError:
            say("\n")
            raise

    def _attach(self) -> SyncSession:
        """Returns the session's stream; opens it where it does not stand, again or first."""
        if self._session is not None and self._session.attached:
            return self._session
        session = (
            self._client.resume_session(self._name)
            if self._name
            else self._client.new_session(self._settings)
        )
        session.open()
        self._session, self._name = session, session.name
        return session

    def _show(self, turn: SyncTurn) -> None:
        pieces = turn.text()
        stopping = False
        while True:
            try:
                for piece in pieces:
                    say(piece)
                break
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
                turn.cancel()
        say("\n")
        ended = turn.completed
        if ended is not None and ended.finish_reason in _STOPPED:
            note(_STOPPED[ended.finish_reason])

    def _start_over(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session, self._name = None, ""
        note("A new conversation.")

    def _show_history(self) -> None:
        if not self._name:
            note("Nothing was said yet.")
            return
        for turn in self._client.sessions.list_turns(self._name):
            for item in turn.input:
                print(f"> {visible(item.message.text)}")
            print(visible(turn.output.text))
