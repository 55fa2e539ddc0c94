"""`antiphon chat`: a conversation in the terminal, with its history on the server."""

import argparse
from typing import Final

from antiphon.v1 import session_pb2

from antiphon_cli.config_flags import add_config, add_model, config_of
from antiphon_cli.connection_flags import add_connection, connect, flags_again
from antiphon_cli.conversation import Conversation
from antiphon_cli.failures import report
from antiphon_cli.outcome import WRONG_USE, complain, complain_of
from antiphon_cli.terminal import LineReader
from antiphon_client import ServerError

DESCRIPTION = """\
Talks to a model. The history is kept on the server: leave, come back with --session, go on.

Where the server is gone in the midst of an answer, the chat waits for it and goes on from there.
Ctrl-C stops the answer, Ctrl-D leaves, /help lists the commands."""
EXAMPLES = """\
examples:
  antiphon chat
  antiphon chat --instructions "Answer in one sentence"
  antiphon chat --session 3f2a9c
  antiphon chat --target 10.0.0.5:50051 --ca ca.pem --token-file token --temperature 0
"""

RECONNECT_TIMEOUT_S: Final = 300.0
"""A person can leave sooner; a server that loads its model takes a while."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_model(parser)
    parser.add_argument("--session", metavar="NAME", help="go on with this conversation")
    parser.add_argument(
        "--take-over", action="store_true", help="take --session from whoever drives it"
    )
    parser.add_argument(
        "--instructions", metavar="TEXT", default="", help="how the model should behave"
    )
    add_config(parser)
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Talks until the person leaves; returns the exit status."""
    if arguments.session and arguments.instructions:
        complain("--instructions are for a new conversation; leave them or --session out")
        return WRONG_USE
    if arguments.take_over and not arguments.session:
        complain("--take-over takes the conversation that --session names; name one")
        return WRONG_USE
    try:
        config = config_of(arguments)
        connected = connect(arguments, reconnect_timeout_s=RECONNECT_TIMEOUT_S)
    except (OSError, ValueError) as error:
        complain_of(error)
        return WRONG_USE
    settings = session_pb2.Session(model=arguments.model, instructions=arguments.instructions)
    with connected as client:
        chat = Conversation(
            client,
            arguments.target,
            settings=settings,
            config=config,
            flags_again=flags_again(arguments),
        )
        try:
            chat.begin(arguments.session, takes_over=arguments.take_over)
        except ServerError as error:
            return report(error, arguments.target)
        try:
            return chat.talk(LineReader())
        finally:
            chat.leave()
