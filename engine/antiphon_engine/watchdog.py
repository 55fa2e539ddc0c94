"""Ends the process soon after its front end has gone, whatever the engine's thread is doing."""

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time

EXIT_STATUS = 3
"""Of a process that the watchdog ends."""

_PR_SET_PDEATHSIG = 1


def end_with_front_end(link: socket.socket, *, grace_s: float = 1.0) -> None:
    """Sees to it that this process outlives the other end of `link` by about `grace_s` at most.

    Only watches the socket, never reads it; the loop may notice the end by itself within the grace.
    """
    end_with_parent()
    watch = threading.Thread(
        target=_watch, args=(os.dup(link.fileno()), grace_s), name="watchdog", daemon=True
    )
    watch.start()


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent dies, even if no thread here can run.

    The parent is the thread that started this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(link_fd: int, grace_s: float) -> None:
    hang_up = select.poll()
    hang_up.register(link_fd, select.POLLRDHUP)
    while not hang_up.poll(1000):
        pass
    time.sleep(grace_s)
    os._exit(EXIT_STATUS)
