"""How a command ends: its exit status and the one line that says why. Loads no gRPC."""

import sys
from typing import Final

FAILED: Final = 1
WRONG_USE: Final = 2
NOT_REACHABLE: Final = 3
CUT_SHORT: Final = 4
"""An answer that had to keep to a form ended before it was whole."""
INTERRUPTED: Final = 130


def complain(text: str) -> None:
    """Writes one line to standard error."""
    print(f"antiphon: {text}", file=sys.stderr, flush=True)


def complain_of(error: Exception) -> None:
    """Writes one line on an error to standard error."""
    complain(reason_of(error))


def reason_of(error: Exception) -> str:
    """Returns what an error says; one of the system's, which file and why."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    return str(error)
