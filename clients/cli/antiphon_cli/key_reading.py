"""Reads single keys from the terminal, while an event loop does other things."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def reading_keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_key` on the running loop for each key; does nothing where nobody types.

    Ctrl-C still interrupts.
    """
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        typed = b""
        with suppress(OSError):
            typed = os.read(terminal, 64)
        if not typed:  # It is gone, and would be told of again and again.
            loop.remove_reader(terminal)
        for key in typed.decode(errors="replace"):
            on_key(key)

    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSANOW)
        loop.add_reader(terminal, read)
        yield
    finally:
        loop.remove_reader(terminal)
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)
