"""A process of the front end's own: how it is started, and how it finds its end of the socket."""

import argparse
import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, TypeVar

import msgspec

from antiphon_engine.api.parent_process import end_with_parent

_STANDARD_ERROR = 2
_MAX_START_BYTES = 1 << 20
_Start = TypeVar("_Start")


class ChildProcess:
    """A process that this one has started. Used on one event loop.

    A thread waits for its end: that works on every kernel, and no signal's handler is taken.
    """

    def __init__(self, started: "subprocess.Popen[bytes]") -> None:
        """Takes it over: nobody else may wait for it."""
        self.pid: Final = started.pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(
            target=self._wait_for, args=(started,), name=f"wait for {started.pid}", daemon=True
        ).start()

    @property
    def returncode(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None: it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Waits for its end and returns `returncode`."""
        return await asyncio.shield(self._ended)

    def _wait_for(self, started: "subprocess.Popen[bytes]") -> None:
        status = started.wait()
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(self._ended.set_result, status)


@dataclass(frozen=True, slots=True)
class LinkedProcess:
    """A running process and the front end's end of the socket to it."""

    process: ChildProcess
    link: socket.socket

    async def end(self, grace_s: float) -> None:
        """Waits `grace_s` for the process to end by itself, then kills it and its children."""
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), grace_s)
        finally:
            # Its children too: they would hold the socket and the memory. It leads its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


def spawn(command: Sequence[str], start: object) -> LinkedProcess:
    """Starts a process in a session of its own, so that a terminal's Ctrl-C passes it by.

    Takes half a millisecond of the event loop: `subprocess` copies nothing of this process for it,
    where the loops' own ways do, and what the process is told waits for it in memory. The calling
    thread becomes its parent; see `end_with_parent`.

    Args:
        command: Runs it; gets its end of the socket as `--link-fd`.
        start: What it is told on its standard input, as JSON.

    Raises:
        OSError: the command can't be run.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with theirs, open(os.memfd_create("start"), "w+b") as said:
            said.write(msgspec.json.encode(start))
            said.seek(0)
            started = subprocess.Popen(
                [*command, "--link-fd", str(theirs.fileno())],
                stdin=said,
                # What libraries print goes to the log.
                stdout=_STANDARD_ERROR,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
    except OSError:
        ours.close()
        raise
    return LinkedProcess(ChildProcess(started), ours)


def link_of_this_process(arguments: Sequence[str]) -> socket.socket:
    """Returns a started process's end of the socket, from its command line.

    To be called before anything that takes long: from now on this process ends with its parent.
    Where the front end has gone already, it ends at once.
    """
    end_with_parent()
    parser = argparse.ArgumentParser(description="Started by the server.")
    parser.add_argument("--link-fd", type=int, required=True)
    link = socket.socket(fileno=parser.parse_args(arguments).link_fd)
    # A child that held it too would hide this process's end from the front end.
    link.set_inheritable(False)
    hang_up = select.poll()
    hang_up.register(link, select.POLLRDHUP)
    if hang_up.poll(0):
        sys.exit(1)  # Nobody is left to be told why.
    return link


def read_start(stream: BinaryIO, kind: type[_Start]) -> _Start:
    """Reads what the front end says at the start. Ends the process where it ended before that."""
    said = stream.read(_MAX_START_BYTES)
    if not said:
        sys.exit("The front end ended before it said what is to run.")
    return msgspec.json.decode(said, type=kind)
