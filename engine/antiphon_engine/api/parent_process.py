"""How a process that another one started goes with it. Imports little: it comes first."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent dies, even if no thread here can run.

    The parent is the thread that started this process. One that had died before is not noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run_at_terminal(command: Sequence[str], said: bytes = b"") -> int:
    """Runs a process that shares this one's terminal; returns its exit status.

    A Ctrl-C waits in the process until that calls `share_the_terminal`, so that what it imports
    before can't tell of it. For the main thread.

    Args:
        command: Runs it.
        said: What it reads on its standard input.

    Raises:
        KeyboardInterrupt: the process has ended then.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with process:
        try:
            process.communicate(said)
        except BaseException:
            process.kill()
            raise
    return process.returncode


def share_the_terminal() -> None:
    """Lets a terminal's Ctrl-C end this process without a word: its parent is told as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
