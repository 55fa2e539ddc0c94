"""Entry point of `antiphon`: finds the subcommand and runs it."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, Protocol, cast

from antiphon_cli.command_parser import CommandParser
from antiphon_cli.outcome import FAILED, INTERRUPTED, WRONG_USE, complain, reason_of
from antiphon_cli.standard_streams import keep_grpc_quiet, let_go_of_broken, prepare

COMMANDS: Final = {
    "serve": "run a server",
    "chat": "talk to a model, with the history kept on the server",
    "session": "list, show, export, import and delete conversations",
    "generate": "one answer, streamed to standard output",
    "validate-constraint": "whether answers can be held to a schema, an expression or a grammar",
    "trace": "where the time of a turn went",
    "top": "what an engine does, live",
    "bench": "measure an engine without a server",
    "build-attention": "build FlashInfer's attention kernels for this machine's device",
    "backup": "copy the session store, while its server runs",
    "token": "draw a token, and print the lines that let it in",
}

_SERVERS: Final = {"serve"}
"""Commands whose log gRPC may write to."""

_USAGE: Final = """\
Antiphon serves large language models as a gRPC service with stateful sessions.

usage: antiphon COMMAND [OPTIONS]
       antiphon COMMAND --help

commands:
{commands}

A first conversation, in two terminals:
  antiphon serve
  antiphon chat

exit status: 0 done, 1 the server refused or failed, 2 wrong command line or settings,
3 no server answered, 4 an answer under a constraint was cut before it was whole, 130 interrupted
"""


class Command(Protocol):
    """What the module of a subcommand offers."""

    DESCRIPTION: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the flags."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does the work and returns the exit status."""


def main(argv: Sequence[str] | None = None, *, load: Callable[[str], Command] | None = None) -> int:
    """Runs the command that `argv` names and returns its exit status.

    Args:
        argv: The words of the command line; None: this process's.
        load: Returns a command by its name; None: its module.
    """
    prepare()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words, load or _load)
        # What is still held back is written here, where a failure of that can be told.
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # Whoever read the output has left.
        return INTERRUPTED
    except OSError as error:
        return _end_with(f"can't go on: {reason_of(error)}", FAILED)
    except UnicodeError:
        return _end_with(
            f"what was given is no text in {sys.stdin.encoding}, which the locale names", WRONG_USE
        )
    finally:
        let_go_of_broken()
    return status


def _dispatch(words: Sequence[str], load: Callable[[str], Command]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage(), end="")
        return 0 if words else WRONG_USE
    if words[0] in ("-V", "--version"):
        from importlib import metadata  # Takes longer than all else that is imported here.

        print(f"antiphon {metadata.version('antiphon')}")
        return 0
    if words[0] not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean `antiphon {near[0]}`?" if near else "`antiphon --help` lists them"
        complain(f"there is no command {words[0]!r}; {hint}")
        return WRONG_USE
    return _run(words[0], words[1:], load)


def _run(name: str, words: Sequence[str], load: Callable[[str], Command]) -> int:
    if name not in _SERVERS:
        keep_grpc_quiet()
    command = load(name)
    parser = CommandParser(
        prog=f"antiphon {name}",
        description=command.DESCRIPTION,
        epilog=command.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def _end_with(complaint: str, status: int) -> int:
    with suppress(BrokenPipeError):  # Nobody may be left to hear of it.
        complain(complaint)
    return status


def _load(name: str) -> Command:
    return cast(Command, import_module(f"antiphon_cli.{name.replace('-', '_')}"))


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return _USAGE.format(commands="\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
