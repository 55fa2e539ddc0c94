"""The main function of test processes."""

import sys
from collections.abc import Callable, Mapping
from typing import Final


def _test_worker() -> int:
    """Does what execnet asks of a Python that it has started, on standard input and output."""
    exec(eval(sys.stdin.readline()), sys.modules["__main__"].__dict__)
    return 0


MAINS: Final[Mapping[str, Callable[[], int]]] = {"test_worker": _test_worker}
