"""How much a tenant may have and ask."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """The quotas of one tenant; 0: no limit."""

    max_sessions: int = 0
    """Sessions at a time."""
    max_stored_bytes: int = 0
    """What its sessions take up in the store; beyond it no turn and no session is taken in."""
    max_queued_turns: int = 0
    """Turns that wait behind another of their session, over all sessions."""
    max_concurrent_requests: int = 0
    """Requests and turns that were let in and have not ended."""
    requests_per_minute: int = 0
    """Requests and turns let in; as many may come at once as in a minute."""
    tokens_per_minute: int = 0
    """Tokens of prompts and outputs; an output counts as long as it may become until it ends."""

    def overridden(self, by: Mapping[str, int]) -> "QuotaLimits":
        """Returns the limits of a tenant for which some are set."""
        return replace(self, **by)


QUOTAS: Final = tuple(field.name for field in fields(QuotaLimits))
"""The names of all."""


def quota_exceeded(
    name: str, *, limit: int, used: int, asked: int, delay_s: float | None
) -> AntiphonError:
    """Returns the error for one that a quota refuses.

    Args:
        name: The quota.
        limit: What the tenant may use.
        used: What it uses.
        asked: What it asked for beyond that.
        delay_s: When it will fit; None: waiting will not help.
    """
    then = "ask for less, or let go of some" if delay_s is None else f"try again in {delay_s:.3g} s"
    more = f"{asked} more {'was' if asked == 1 else 'were'} asked for"
    return AntiphonError(
        ErrorReason.QUOTA_EXCEEDED,
        f"the tenant's quota {name} is {limit}, of which {used} are used; {more}; {then}",
        metadata={"quota": name, "limit": str(limit), "used": str(used), "asked": str(asked)},
        retry_delay_s=delay_s,
    )
