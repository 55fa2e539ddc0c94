"""Stands for a process that the zygote forks: `fork_launcher.py NAME MAIN … [--link-fd N]`.

Imports next to nothing, and no module written in Python but `os`: it starts with every engine, and
those would double what that costs. See `support.zygote`.
"""

import _socket
import marshal
import os
import sys


def main() -> int:
    """Waits for the fork; returns its exit status, or ends by the signal that ended it."""
    name, *command = sys.argv[1:]
    links = [int(command.pop())] if command[-2:-1] == ["--link-fd"] else []
    request = {"command": command, "environ": dict(os.environ), "directory": os.getcwd()}
    zygote = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    zygote.connect(f"\0{name}")
    files = b"".join(file.to_bytes(4, sys.byteorder) for file in (0, 1, 2, *links))
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)
    zygote.sendmsg([marshal.dumps(request)], [rights])
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
