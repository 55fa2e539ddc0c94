"""Stands for an engine that a zygote forks: `engine_launcher.py NAME MAIN … --link-fd N`.

Imports little: it starts with every engine. See `support.engine_zygote`.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Waits for the engine; returns its exit status, or ends by the signal that ended it."""
    name, *command = sys.argv[1:]
    link = int(command[-1])
    request = {"command": command, "environ": dict(os.environ), "directory": os.getcwd()}
    zygote = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote.connect(f"\0{name}")
    socket.send_fds(zygote, [json.dumps(request).encode()], [0, 1, 2, link])
    # The engine's end is to be seen on what it holds, and this process holds it too.
    os.close(link)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    status = int(zygote.recv(16) or b"1")
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
