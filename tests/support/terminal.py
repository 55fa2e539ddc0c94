"""A program at a terminal: what it writes, and what a person types."""

import fcntl
import os
import pty
import re
import runpy
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from support.zygote import launcher_command

CTRL_C = "\x03"
CTRL_D = "\x04"
_CONTROL_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def main() -> int:
    """Runs the module that the first argument names, at the terminal on standard input.

    That must be the controlling one, so that Ctrl-C there interrupts; and what runs in a shell's
    background, as the tests may, ignores interrupts until it says otherwise.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    del sys.argv[0]
    sys.modules.pop(sys.argv[0], None)  # It is to run as a program does, from its beginning.
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


class Terminal:
    """Runs a Python module at a pseudo-terminal of its own. Blocks: use it from a thread.

    By a fork of the tests' zygote, which spares it the imports, unless told otherwise.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        echoes: bool = False,
        limit_s: float = 60.0,
        forked: bool = True,
    ) -> None:
        """Starts it.

        Args:
            module: Runs as `python -m` would run it.
            arguments: Of its command line.
            environ: Set beside this process's.
            echoes: Whether the terminal shows what is typed.
            limit_s: How long it may take to write what is expected.
            forked: False: a process of its own, in which readline reads how lines are edited.
        """
        program = [*launcher_command(), "support.terminal"] if forked else _program()
        self._limit_s = limit_s
        self._master, slave = pty.openpty()
        if not echoes:
            attributes = termios.tcgetattr(slave)
            attributes[3] &= ~termios.ECHO
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self._process = subprocess.Popen(
            [*program, module, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **environ},
        )
        os.close(slave)
        self.written = ""
        self.raw = ""
        """With what steers the terminal."""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Types `text`."""
        os.write(self._master, text.encode())

    def expect(self, text: str) -> str:
        """Waits until `text` is written, and returns all that was written before it."""
        deadline_s = time.monotonic() + self._limit_s
        while (found := self.written.find(text, self._seen)) < 0:
            assert self._read(deadline_s), f"{text!r} did not come in {self.written!r}"
        before = self.written[self._seen : found]
        self._seen = found + len(text)
        return before

    def wait_for_more(self) -> None:
        """Waits until anything is written."""
        assert self._read(time.monotonic() + self._limit_s), "nothing more came"

    def wait(self) -> int:
        """Waits for the program's end and returns its exit status."""
        deadline_s = time.monotonic() + self._limit_s
        while self._read(deadline_s):
            pass
        return self._process.wait(max(deadline_s - time.monotonic(), 0.1))

    def _read(self, deadline_s: float) -> bool:
        """Reads what there is; False at the end or at the deadline."""
        ready, _, _ = select.select([self._master], [], [], max(deadline_s - time.monotonic(), 0))
        if not ready:
            return False
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that the program has closed its side.
            return False
        self.raw += piece.decode(errors="replace")
        self.written += _CONTROL_SEQUENCES.sub("", piece.decode(errors="replace"))
        return bool(piece)


def _program() -> list[str]:
    tests = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {tests!r}); from support.terminal import main; main()"
    return [sys.executable, "-c", code]
