"""How much a tenant may have and ask."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


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
