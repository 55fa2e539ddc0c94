"""How a command ends: its exit status and the one line that says why. Loads no gRPC."""

import sys
from typing import Final

FAILED: Final = 1
WRONG_USE: Final = 2
NOT_REACHABLE: Final = 3
INTERRUPTED: Final = 130


def complain(text: str) -> None:
    """Writes one line to standard error."""
    print(f"antiphon: {text}", file=sys.stderr, flush=True)


def complain_of(error: Exception, *, before: str = "") -> None:
    """Writes one line on an error to standard error; of the system's, which file and why."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    complain(before + text)
