"""What a process has used, as Linux tells it."""

import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_bytes(process_id: int) -> int:
    """Returns the memory that is resident."""
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * _PAGE_BYTES


class _MallocInfo(ctypes.Structure):
    """The C library's mallinfo2."""

    _fields_ = (
        ("not_read", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("not_read_either", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("nor_that", ctypes.c_size_t * 2),
    )


def allocated_bytes() -> int:
    """Returns what native code and large Python objects of this process have of the heap now."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallocInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def cpu_time_ns(process_id: int) -> int:
    """Returns the time on a core of all its threads that live."""
    threads = Path(f"/proc/{process_id}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads)


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Where a thread's time went, asleep apart."""

    run_ns: int
    """On a core."""
    wait_ns: int
    """Ready, and others had the cores."""


def main_thread_time(process_id: int) -> ThreadTime:
    """Returns where the time of a process's main thread went so far."""
    path = Path(f"/proc/{process_id}/task/{process_id}/schedstat")
    run_ns, wait_ns, _ = map(int, path.read_text().split())
    return ThreadTime(run_ns, wait_ns)


def whole_cpu_time_ns(process_id: int) -> int:
    """Returns the time on a core of all its threads, those too that have ended."""
    clock_of_process = (~process_id << 3) | 2  # As clock_getcpuclockid makes it.
    return time.clock_gettime_ns(clock_of_process)
