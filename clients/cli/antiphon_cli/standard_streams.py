"""Standard streams that are closed, or that nobody reads any more, must not stop a command."""

import io
import os
import sys


def prepare() -> None:
    """Opens the null device in place of each standard stream that the process came without.

    Otherwise the next socket would take its number, and libraries would write into that. What the
    encoding of standard output lacks is written as question marks.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Opening takes the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has none of its own where the descriptor was closed, whatever its types say.
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def keep_grpc_quiet() -> None:
    """Keeps gRPC's own log off the terminal; it is read once, when gRPC is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def let_go_of_broken() -> None:
    """Drops what can't be written any more: Python would complain of it at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
