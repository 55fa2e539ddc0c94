"""Reading from and writing to the person at the terminal."""

import sys
import unicodedata


def visible(text: str) -> str:
    """Returns `text` with control characters replaced, so that it can't steer the terminal."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
        for c in text
    )


def say(text: str) -> None:
    """Writes a piece of an answer to standard output, at once."""
    print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)


def note(text: str) -> None:
    """Writes a remark to standard error."""
    print(text, file=sys.stderr, flush=True)


def read_line(prompt: str) -> str:
    """Returns what a person types, or the next line of a pipe.

    Raises:
        EOFError: nothing more comes.
        UnicodeError: the line is no text in the encoding that the locale names.
    """
    line = input(prompt)
    line.encode()  # Where the locale names none, bytes that are no text come through as half pairs.
    return line


def edit_lines() -> None:
    """Lets `input` edit lines and recall earlier ones, where the platform can."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)
