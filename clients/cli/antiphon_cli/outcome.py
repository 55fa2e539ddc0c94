"""How a command ends: its exit status and the one line that says why."""

import sys
from typing import Final

from antiphon_client import NotReachable, ServerError

FAILED: Final = 1
WRONG_USE: Final = 2
NOT_REACHABLE: Final = 3
INTERRUPTED: Final = 130


def complain(text: str) -> None:
    """Writes one line to standard error."""
    print(f"antiphon: {text}", file=sys.stderr, flush=True)


def explain(error: ServerError, target: str) -> str:
    """Returns one line for the person who asked: what happened and what to do."""
    if isinstance(error, NotReachable):
        return (
            f"no server answers at {target}; start one with `antiphon serve`, "
            "or name another with --target"
        )
    text = " ".join(error.message.split()) or error.code.name
    if error.reason:
        text += f" ({error.reason})"
    if error.retry_delay_s:
        text += f"; try again in {error.retry_delay_s:.1f} s"
    return text


def report(error: ServerError, target: str) -> int:
    """Complains about `error` and returns the exit status that goes with it."""
    complain(explain(error, target))
    return NOT_REACHABLE if isinstance(error, NotReachable) else FAILED
