"""Main functions of forks that import nothing, for the tests of what forks them."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final


def _end() -> int:
    """Ends with the status that its argument says."""
    return int(sys.argv[1])


def _exit() -> int:
    """Ends as a program that has something to say does."""
    sys.exit(sys.argv[1])


def _fail() -> int:
    raise ValueError(sys.argv[1])


def _wait() -> int:
    """Says its process id, and waits until it is killed."""
    print(os.getpid(), flush=True)
    while True:
        time.sleep(60)


MAINS: Final[Mapping[str, Callable[[], int]]] = {
    "end": _end,
    "exit": _exit,
    "fail": _fail,
    "wait": _wait,
}
