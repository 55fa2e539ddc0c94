"""A fork of the zygote, with what `subprocess.Popen` offers of a process whose output is text."""

import marshal
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import TextIO

from support.zygote import zygote_name

_ASK_LIMIT_S = 60.0
"""The zygote answers once it has imported all."""


class ForkedProcess:
    """Runs a main function that the zygote has; its input is empty, its outputs are piped."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        directory: Path,
        zygote: str | None = None,
    ) -> None:
        """Starts it.

        Args:
            command: The main function and its arguments.
            environ: Its environment.
            directory: Where it runs.
            zygote: The name of the zygote's socket; None: the one that a run shares.
        """
        self.args = [*command]
        self.returncode: int | None = None
        """As Popen's: negative where a signal ended it, None before that is known."""
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        files = [os.open(os.devnull, os.O_RDONLY), its_out, its_err]
        self.stdout: TextIO = os.fdopen(out)
        self.stderr: TextIO = os.fdopen(err)
        request = {"command": self.args, "environ": {**environ}, "directory": str(directory)}
        self._zygote = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._zygote.settimeout(_ASK_LIMIT_S)
        self._zygote.connect(f"\0{zygote or zygote_name()}")
        socket.send_fds(self._zygote, [marshal.dumps(request)], files)
        for file in files:
            os.close(file)
        self.pid = int(self._zygote.recv(16))

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Returns how it ended; None: it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended and returns how.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        if self.returncode is None:
            self._zygote.settimeout(timeout)
            try:
                self.returncode = int(self._zygote.recv(16) or b"1")
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("fork", timeout or 0) from None
            self._zygote.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Reads its outputs to their ends, waits for its end and returns what they said.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        begin_s = time.monotonic()
        if wait(self._outputs, timeout).not_done:
            raise subprocess.TimeoutExpired("fork", timeout or 0)
        self.wait(None if timeout is None else max(0.0, begin_s + timeout - time.monotonic()))
        out, err = (output.result() for output in self._outputs)
        return out, err

    @cached_property
    def _outputs(self) -> list[Future[str]]:
        """What is read of its outputs, from the first call on."""
        readers = ThreadPoolExecutor(2)
        outputs = [readers.submit(file.read) for file in (self.stdout, self.stderr)]
        readers.shutdown(wait=False)
        return outputs
