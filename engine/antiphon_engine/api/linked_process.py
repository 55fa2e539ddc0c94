"""A process of the front end's own: how it is started, and how it finds its end of the socket."""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import msgspec

_STANDARD_ERROR = 2
_MAX_START_BYTES = 1 << 20
_Start = TypeVar("_Start")


@dataclass(frozen=True, slots=True)
class LinkedProcess:
    """A running process and the front end's end of the socket to it."""

    process: asyncio.subprocess.Process
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


async def spawn(command: Sequence[str], start: object) -> LinkedProcess:
    """Starts a process in a session of its own, so that a terminal's Ctrl-C passes it by.

    Args:
        command: Runs it; gets its end of the socket as `--link-fd`.
        start: What it is told on its standard input, as JSON.

    Raises:
        OSError: the command can't be run.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--link-fd",
            str(theirs.fileno()),
            stdin=asyncio.subprocess.PIPE,
            # What libraries print goes to the log.
            stdout=_STANDARD_ERROR,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    assert process.stdin is not None
    # One that has died already is noticed by whoever watches it. uvloop tells of that by a
    # RuntimeError of its own.
    with contextlib.suppress(RuntimeError, OSError):
        process.stdin.write(msgspec.json.encode(start))
        process.stdin.close()
    return LinkedProcess(process, ours)


def link_of_this_process(arguments: Sequence[str]) -> socket.socket:
    """Returns a started process's end of the socket, from its command line."""
    parser = argparse.ArgumentParser(description="Started by the server.")
    parser.add_argument("--link-fd", type=int, required=True)
    link = socket.socket(fileno=parser.parse_args(arguments).link_fd)
    # A child that held it too would hide this process's end from the front end.
    link.set_inheritable(False)
    return link


def read_start(stream: BinaryIO, kind: type[_Start]) -> _Start:
    """Reads what the front end says at the start. Ends the process where it ended before that."""
    said = stream.read(_MAX_START_BYTES)
    if not said:
        sys.exit("The front end ended before it said what is to run.")
    return msgspec.json.decode(said, type=kind)
