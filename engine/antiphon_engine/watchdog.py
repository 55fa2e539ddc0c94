"""Ends the process soon after its front end has gone, whatever the engine's thread is doing."""

import os
import select
import socket
import threading
import time

EXIT_STATUS = 3
"""Of a process that the watchdog ends."""


def end_with_front_end(link: socket.socket, *, grace_s: float = 1.0) -> None:
    """Sees to it that this process outlives the other end of `link` by about `grace_s` at most.

    Only watches the socket, never reads it; the loop may notice the end by itself within the grace.
    """
    watch = threading.Thread(
        target=_watch, args=(os.dup(link.fileno()), grace_s), name="watchdog", daemon=True
    )
    watch.start()


def _watch(link_fd: int, grace_s: float) -> None:
    hang_up = select.poll()
    hang_up.register(link_fd, select.POLLRDHUP)
    while not hang_up.poll(1000):
        pass
    time.sleep(grace_s)
    os._exit(EXIT_STATUS)
