"""Who has the processor first.

Linux tells a process's threads apart. Where it can't or may not be told, all stays as it is.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

_GROUP: Final = Path("/proc/self/autogroup")
_LEAST: Final = 19


def give_way(niceness: int) -> None:
    """Lowers the calling process's priority, what it starts from now on, and its session's.

    To be called while the process has one thread.

    Linux may share the processor out among sessions first, and among the threads of each then. A
    process that leads a session would so be as important as the one it is to give way to, however
    nice its threads are.

    Args:
        niceness: 1 to 19. Whoever is nicer already stays so: there is no way back.
    """
    lower(threading.main_thread(), niceness)
    if os.getsid(0) == os.getpid():
        # Many systems have no such groups, and some let nobody change them.
        with contextlib.suppress(OSError):
            _GROUP.write_text(str(os.getpriority(os.PRIO_PROCESS, 0)), encoding="ascii")


def lower(thread: threading.Thread, niceness: int) -> None:
    """Lowers the priority of a thread of this process among the others; any thread may call it.

    One that is nicer already stays so, and one that has ended is let be.
    """
    if thread.native_id is not None and thread.is_alive():
        with contextlib.suppress(OSError):
            before = os.getpriority(os.PRIO_PROCESS, thread.native_id)
            os.setpriority(os.PRIO_PROCESS, thread.native_id, max(niceness, before))


def lower_to_leftovers(thread: threading.Thread) -> None:
    """Lets a thread run only where a core has nothing else to do; otherwise as `lower`."""
    lower(thread, _LEAST)
    if thread.native_id is not None and thread.is_alive():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread.native_id, os.SCHED_IDLE, os.sched_param(0))
