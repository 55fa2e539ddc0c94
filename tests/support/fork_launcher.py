"""Stands for a process that the zygote forks: `fork_launcher.py NAME MAIN … [--link-fd N]`.

Imports little: it starts with every engine. See `support.zygote`.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Waits for the fork; returns its exit status, or ends by the signal that ended it."""
    name, *command = sys.argv[1:]
    links = [int(command.pop())] if command[-2:-1] == ["--link-fd"] else []
    request = {"command": command, "environ": dict(os.environ), "directory": os.getcwd()}
    zygote = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote.connect(f"\0{name}")
    socket.send_fds(zygote, [json.dumps(request).encode()], [0, 1, 2, *links])
    # The fork's end is to be seen on what it holds, and this process holds it too.
    for link in links:
        os.close(link)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    # Whoever looks for the fork finds its id here; see `engines_of` in `support.serve_command`.
    with open("/proc/self/comm", "w") as title:
        title.write(f"fork {int(zygote.recv(16))}")
    status = int(zygote.recv(16) or b"1")
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
