"""How a process that another one started goes with it. Imports next to nothing: it comes first."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent dies, even if no thread here can run.

    The parent is the thread that started this process. One that had died before is not noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def share_the_terminal() -> None:
    """Lets a terminal's Ctrl-C end this process without a word: its parent is told as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
