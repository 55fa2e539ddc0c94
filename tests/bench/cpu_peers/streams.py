"""What an engine is asked for and what it gave: streams of tokens with the times of each.

Nothing but the standard library is needed here, since a peer's own environment has no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream's tokens."""

    token_ids: list[int]
    arrivals_s: list[float]
    """When each came, from when the first prompt of the batch was sent."""


class MeasuredEngine(Protocol):
    """An engine that is ready. One batch at a time."""

    process_id: int
    """Whose memory, with that of all processes below it, is the engine's."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Streamed]:
        """Generates so many tokens behind each prompt, all at once, greedily; ends are ignored."""


def first_token_s(streams: Sequence[Streamed]) -> float:
    """Returns when the last stream had its first token."""
    return max(stream.arrivals_s[0] for stream in streams)


def decode_tokens_per_s(streams: Sequence[Streamed]) -> float:
    """Returns the rate of all streams together, from when each had its first token."""
    begin_s = first_token_s(streams)
    end_s = max(stream.arrivals_s[-1] for stream in streams)
    num = sum(each > begin_s for stream in streams for each in stream.arrivals_s)
    return num / (end_s - begin_s) if end_s > begin_s else 0.0


def check_lengths(streams: Sequence[Streamed], num_tokens: int) -> None:
    """Raises RuntimeError where a stream has not the tokens that were asked for."""
    found = [len(stream.token_ids) for stream in streams]
    if any(num != num_tokens for num in found):
        raise RuntimeError(f"asked for {num_tokens} tokens a stream and got {found}")
