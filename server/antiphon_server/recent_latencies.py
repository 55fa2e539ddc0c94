"""How long requests took that ended lately, for those who watch a server."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.v1 import admin_pb2

from antiphon_server.times import to_duration

MAX_REQUESTS: Final = 1024
WINDOW_NS: Final = 60 * 10**9
_FRESH_NS: Final = 10**9 // 2
"""How long an answer is given again: many may watch, and each is a sort."""


@dataclass(frozen=True, slots=True)
class _Ended:
    end_ns: int
    first_token_ns: int
    """After its receipt."""
    per_token_ns: int | None
    """None: it had one token only."""


class RecentLatencies:
    """The latencies of one model's latest requests. Used from the event loop."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._ended: deque[_Ended] = deque(maxlen=MAX_REQUESTS)
        self._told = admin_pb2.RecentLatencies()
        self._told_ns: int | None = None

    def note(self, *, time_to_first_token_ns: int, decode_ns: int, num_tokens: int) -> None:
        """Notes a request that had a first token and has ended.

        Args:
            time_to_first_token_ns: From its receipt.
            decode_ns: From its first token to its last.
            num_tokens: Of its longest output.
        """
        per_token_ns = decode_ns // (num_tokens - 1) if num_tokens > 1 else None
        self._ended.append(_Ended(self._clock_ns(), time_to_first_token_ns, per_token_ns))

    def tell(self) -> admin_pb2.RecentLatencies:
        """Returns what requests of the last minute took, half a second old at most."""
        now_ns = self._clock_ns()
        if self._told_ns is None or now_ns - self._told_ns >= _FRESH_NS:
            self._told, self._told_ns = self._computed(now_ns), now_ns
        return self._told

    def _computed(self, now_ns: int) -> admin_pb2.RecentLatencies:
        while self._ended and now_ns - self._ended[0].end_ns > WINDOW_NS:
            self._ended.popleft()
        per_token = [each.per_token_ns for each in self._ended if each.per_token_ns is not None]
        return admin_pb2.RecentLatencies(
            num_requests=len(self._ended),
            time_to_first_token=_quantiles([each.first_token_ns for each in self._ended]),
            time_per_output_token=_quantiles(per_token),
        )


def _quantiles(values_ns: Sequence[int]) -> admin_pb2.Quantiles | None:
    """Returns the least values that half and 99 of 100 don't exceed."""
    if not values_ns:
        return None
    ordered, num = sorted(values_ns), len(values_ns)
    return admin_pb2.Quantiles(
        p50=to_duration(ordered[(num * 50 + 99) // 100 - 1]),
        p99=to_duration(ordered[(num * 99 + 99) // 100 - 1]),
    )
