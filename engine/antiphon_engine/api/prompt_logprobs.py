"""What an engine tells of prompts. Arrays are little-endian, as in `messages`."""

from collections.abc import Iterator

import msgspec


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of neighbouring tokens of one prompt, N of them.

    Those of a prompt come in order, without gaps, and before its request's first token.
    """

    request_id: int
    first_position: int
    """At least 1."""
    chosen: bytes
    """float32 [N], of the prompt's own tokens."""
    num_top: int
    top_ids: bytes
    """int32 [N, num_top], likeliest first."""
    top_logprobs: bytes
    """float32, as `top_ids`."""

    @property
    def num_positions(self) -> int:
        """N."""
        return len(self.chosen) // 4

    @property
    def size_bytes(self) -> int:
        """What its arrays take."""
        return len(self.chosen) + len(self.top_ids) + len(self.top_logprobs)

    def split(self, max_positions: int) -> "Iterator[PromptLogprobs]":
        """Yields it in parts of so many positions at most."""
        for first in range(0, self.num_positions, max_positions):
            own = slice(4 * first, 4 * (first + max_positions))
            top = slice(own.start * self.num_top, own.stop * self.num_top)
            yield msgspec.structs.replace(
                self,
                first_position=self.first_position + first,
                chosen=self.chosen[own],
                top_ids=self.top_ids[top],
                top_logprobs=self.top_logprobs[top],
            )
