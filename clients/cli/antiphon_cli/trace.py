"""`antiphon trace`: where the time of a turn went."""

import argparse
import json

from antiphon.v1 import session_pb2
from google.protobuf import json_format

from antiphon_cli.asking import ask
from antiphon_cli.connection_flags import add_connection
from antiphon_cli.outcome import FAILED, complain
from antiphon_cli.output_console import OutputConsole
from antiphon_cli.session_text import full_name, full_turn_name
from antiphon_cli.timeline import Timeline
from antiphon_client import SyncClient

DESCRIPTION = """\
Shows where the time of a turn went, from what the server has kept with it: how long it waited, the
steps that computed its prompt, how long it generated, and when it had to rest. No tracing needs to
be set up for that."""
EXAMPLES = """\
examples:
  antiphon trace 3f2a9c                  the latest turn of a session
  antiphon trace 3f2a9c/71c0d2
  antiphon trace sessions/3f2a9c/turns/71c0d2 --json
"""
_FIELDS = (
    "name",
    "state",
    "usage",
    "timings",
    "failure",
    "trace_id",
    "create_time",
    "end_time",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "turn", metavar="TURN", help="SESSION/TURN; of a SESSION alone, its latest turn"
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows the turn, and returns the exit status."""
    return ask(arguments, lambda _: None, lambda client, _: _show(client, arguments))


def _show(client: SyncClient, arguments: argparse.Namespace) -> int:
    turn = _find(client, arguments.turn)
    if turn is None:
        complain(f"session {arguments.turn} has no turn yet")
        return FAILED
    if arguments.json:
        print(json.dumps(_plain(turn)))
        return 0
    OutputConsole().print(Timeline(turn))
    if not turn.timings.ListFields():
        complain("nothing is kept of its times: it has not ended, or no engine has worked on it")
    return 0


def _find(client: SyncClient, name: str) -> session_pb2.Turn | None:
    turn_name = full_turn_name(name)
    if turn_name:
        return client.sessions.get_turn(turn_name)
    turns = client.sessions.list_turns(
        full_name(name), newest_first=True, show_all=True, page_size=1
    )
    return next(iter(turns), None)


def _plain(turn: session_pb2.Turn) -> object:
    """Returns what there is to know of it but what was said."""
    whole = json_format.MessageToDict(turn, preserving_proto_field_name=True)
    return {name: whole[name] for name in _FIELDS if name in whole}
