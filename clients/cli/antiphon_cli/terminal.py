"""Reading from and writing to the person at the terminal."""

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_CTRL_C: Final = "\x03"
# The key puts itself into the line and ends it.
_KEYS: Final = (
    "$if mode=vi",
    "set keymap vi-command",
    r'"\C-c": "i\C-v\C-c\C-m"',
    "set keymap vi-insert",
    "$endif",
    r'"\C-c": "\C-v\C-c\C-m"',
)


def visible(text: str) -> str:
    """Returns `text` with control characters replaced, so that it can't steer the terminal."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
        for c in text
    )


def say(text: str) -> None:
    """Writes a piece of an answer to standard output, at once."""
    print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)


def mutter(text: str) -> None:
    """Writes a piece of a model's thinking at a terminal, dimmed; where it is none, nothing."""
    if sys.stdout.isatty():
        print(f"\x1b[2m{visible(text)}\x1b[22m", end="", flush=True)


def note(text: str) -> None:
    """Writes a remark to standard error."""
    print(text, file=sys.stderr, flush=True)


class LineReader:
    """Reads lines; at a terminal they can be edited and recalled, where the platform can.

    There Ctrl-C is read as a key. As a signal it would drop what was typed, and where it came
    between readline's wait for a key and the reading of it, neither it nor later ones would be
    seen.
    """

    def __init__(self) -> None:
        self._editing = False
        try:
            import readline
        except ImportError:
            return
        # Its other back end has other words for keys.
        if sys.stdin.isatty() and sys.stdout.isatty() and "libedit" not in (readline.__doc__ or ""):
            readline.set_auto_history(False)
            for words in _KEYS:
                readline.parse_and_bind(words)
            self._editing = True

    def read(self, prompt: str) -> str:
        """Returns what a person types, or the next line of a pipe.

        Raises:
            EOFError: nothing more comes.
            KeyboardInterrupt: the person would rather not; the cursor is on a new line.
            UnicodeError: the line is no text in the encoding that the locale names.
        """
        try:
            line = self._edit(prompt) if self._editing else input(prompt)
        except KeyboardInterrupt:
            note("")
            raise
        if _CTRL_C in line and self._editing:
            raise KeyboardInterrupt
        line.encode()  # Where the locale names none, bytes that are no text come as half pairs.
        return line

    def _edit(self, prompt: str) -> str:
        import readline

        with _interrupts_as_keys(sys.stdin.fileno()):
            line = input(prompt)
        last = readline.get_history_item(readline.get_current_history_length())
        if line and line != last and _CTRL_C not in line:
            readline.add_history(line)
        return line


@contextmanager
def _interrupts_as_keys(terminal: int) -> Iterator[None]:
    import termios

    try:
        before = termios.tcgetattr(terminal)
    except termios.error:  # It is gone, as reading from it says.
        yield
        return
    keys = [*before[6]]
    keys[termios.VINTR] = bytes([os.fpathconf(terminal, "PC_VDISABLE")])
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, [*before[:6], keys])
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)
