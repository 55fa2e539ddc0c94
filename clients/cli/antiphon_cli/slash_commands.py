"""What a person can ask of a chat beside an answer, and how a line is told to be that."""

import difflib
from dataclasses import dataclass
from typing import Final

HELP: Final = {
    "/again": "answer the last message anew",
    "/continue": "go on with an answer that was cut or stopped",
    "/fork [NAME]": "go on in a copy of this conversation, which stays as it is",
    "/help": "list the commands",
    "/history": "show this conversation",
    "/new": "start another conversation",
    "/quit": "leave, as Ctrl-D does",
    "/rewind [N]": "take the last message and its answer back, or the last N",
    "/sessions": "list the conversations that are kept",
}
"""What each command does, by how it is typed."""

_NAMES: Final = {usage.split()[0]: usage for usage in HELP}
_SAME: Final = {"/exit": "/quit"}


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what was typed behind it."""

    name: str
    argument: str = ""


class WrongCommand(ValueError):  # noqa: N818
    """A line looks like a command and is none; says what was meant."""


def read_command(line: str) -> Command | None:
    """Returns the command that a line is; None: it is something to say.

    Raises:
        WrongCommand: it looks like a command and is none, or one that takes nothing has a word.
    """
    if not line.startswith("/"):
        return None
    word, _, argument = line.partition(" ")
    name = _SAME.get(word, word)
    usage = _NAMES.get(name)
    if usage is None:
        near = difflib.get_close_matches(word, _NAMES, n=1, cutoff=0.7)
        if " " in line and not near:
            return None  # A path, perhaps, that something is asked about.
        hint = f"did you mean {near[0]}?" if near else "/help lists them."
        raise WrongCommand(f"There is no command {word}; {hint}")
    if argument.strip() and "[" not in usage:
        raise WrongCommand(f"{name} takes nothing after it.")
    return Command(name, argument.strip())


def help_text() -> str:
    """Returns the commands, one a line."""
    lines = [f"{usage:<14}{summary}" for usage, summary in HELP.items()]
    return "\n".join([*lines, f"{'Ctrl-C':<14}stop the answer"])
