"""`antiphon session`: looks after the conversations that a server keeps."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from antiphon.v1 import session_pb2
from google.protobuf import json_format

from antiphon_cli.asking import ask
from antiphon_cli.connection_flags import add_connection
from antiphon_cli.outcome import FAILED, WRONG_USE, complain, complain_of
from antiphon_cli.progress import Progress
from antiphon_cli.session_list import session_line
from antiphon_cli.session_text import full_name, session_row, short_name, turn_text
from antiphon_client import Archive, ArchiveError, SyncClient

DESCRIPTION = """\
Lists, shows, exports, imports and deletes the conversations that a server keeps.

What `export` writes is JSON Lines: the session, then its turns with items, outputs and configs.
`import` makes a session of it, on any server, with the history as items."""
EXAMPLES = """\
examples:
  antiphon session list
  antiphon session list --label owner=ada --json
  antiphon session show 3f2a9c
  antiphon session export 3f2a9c --output talk.jsonl
  antiphon session import talk.jsonl
  antiphon session delete 3f2a9c
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = _action(
        actions, "list", "one line a session, latest first: how long it is, and how it began"
    )
    listing.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only those with this label; may be given again",
    )
    showing = _action(actions, "show", "one session and what was said")
    showing.add_argument("name", metavar="NAME", help="the session, as `list` has it")
    exporting = _action(actions, "export", "write one session down")
    exporting.add_argument("name", metavar="NAME", help="the session, as `list` has it")
    exporting.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to; default: standard output"
    )
    importing = _action(
        actions, "import", "make a session of one that was exported, with its history as one turn"
    )
    importing.add_argument(
        "file", metavar="FILE", help="what `export` wrote; - reads standard input"
    )
    importing.add_argument("--session-id", metavar="ID", default="", help="what to call it")
    importing.add_argument(
        "--model", metavar="NAME", help="models/NAME in place of the one it was exported with"
    )
    deleting = _action(actions, "delete", "delete sessions, for good")
    deleting.add_argument(
        "names", nargs="+", metavar="NAME", help="the sessions, as `list` has them"
    )
    for action in (listing, showing, importing):
        action.add_argument(
            "--json", action="store_true", help="for programs: JSON, an object a line"
        )
    for action in (listing, showing, exporting, importing, deleting):
        add_connection(action)


def _action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    """Returns the parser of an action, whose own --help says what it does as well."""
    description = f"{summary[0].upper()}{summary[1:]}."
    return actions.add_parser(name, help=summary, description=description, allow_abbrev=False)


def run(arguments: argparse.Namespace) -> int:
    """Does what the action says, and returns the exit status."""
    action = _ACTIONS[arguments.action]
    return ask(arguments, lambda _: None, lambda client, _: action(client, arguments))


def _list(client: SyncClient, arguments: argparse.Namespace) -> int:
    try:
        labels = _labels(arguments.label)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    with Progress("sessions") as progress:
        for session in client.sessions.list(labels):
            progress.advance()
            print(json.dumps(_plain(session)) if arguments.json else session_line(client, session))
    return 0


def _show(client: SyncClient, arguments: argparse.Namespace) -> int:
    name = full_name(arguments.name)
    session = client.sessions.get(name)
    turns = client.sessions.list_turns(name)
    if arguments.json:
        whole = {"session": _plain(session), "turns": [_plain(turn) for turn in turns]}
        print(json.dumps(whole, ensure_ascii=False))
        return 0
    print(session_row(session, num_tokens=session.residency.context_tokens))
    for key, value in (
        ("model", session.model),
        ("instructions", session.instructions),
        ("forked from", session.fork_turn or session.parent_session),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(session.labels.items()))),
    ):
        if value:
            print(f"{key}: {value}")
    for turn in turns:
        print(turn_text(turn))
    return 0


def _export(client: SyncClient, arguments: argparse.Namespace) -> int:
    lines = client.sessions.export(full_name(arguments.name))
    first = next(lines)  # A session that is not there leaves no file.
    with _opened(arguments.output) as write, Progress("turns") as progress:
        write(first)
        for line in lines:
            write(line)
            progress.advance()
    return 0


def _import(client: SyncClient, arguments: argparse.Namespace) -> int:
    try:
        archive = _archive(arguments.file)
    except ArchiveError as error:
        complain(f"{arguments.file}: {error}")
        return FAILED
    except OSError as error:
        complain_of(error)
        return WRONG_USE
    if arguments.model is not None:
        archive.session.model = arguments.model
    session = client.sessions.restore(archive, session_id=arguments.session_id)
    if arguments.json:
        print(json.dumps(_plain(session)))
    else:
        print(short_name(session.name))
    return 0


def _delete(client: SyncClient, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        client.sessions.delete(full_name(name))
    return 0


_ACTIONS: Final[Mapping[str, Callable[[SyncClient, argparse.Namespace], int]]] = {
    "list": _list,
    "show": _show,
    "export": _export,
    "import": _import,
    "delete": _delete,
}


def _archive(file: str) -> Archive:
    if file == "-":
        return Archive.read(_counted(sys.stdin))
    with open(file, encoding="utf-8") as lines:
        return Archive.read(_counted(lines))


def _counted(lines: Iterable[str]) -> Iterator[str]:
    with Progress("turns") as progress:
        for line in lines:
            yield line
            progress.advance()


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Yields what writes a line; a file is there only once it is whole."""
    if path is None:
        yield print
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "w", encoding="utf-8") as lines:

            def write(line: str) -> None:
                lines.write(line + "\n")

            yield write
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _labels(given: Iterable[str]) -> dict[str, str]:
    labels = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"--label: must be KEY=VALUE, is {text!r}")
        labels[key] = value
    return labels


def _plain(message: session_pb2.Session | session_pb2.Turn) -> object:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
