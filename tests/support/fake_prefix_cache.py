"""Which prompts the fake engine has seen, in whole blocks as in the real one."""

from array import array
from collections.abc import Iterator, Sequence

from antiphon_engine.api.messages import Scope


class FakePrefixCache:
    """Remembers blocks of tokens, each together with all that stands before it."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: set[tuple[Scope, int]] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, scope: Scope, token_ids: Sequence[int]) -> None:
        """Remembers the whole blocks of these."""
        self._blocks.update((scope, chain) for chain in self._chains(token_ids))

    def match(self, scope: Scope, token_ids: Sequence[int]) -> int:
        """Returns how many leading tokens are there; never all of them."""
        num_blocks = 0
        for chain in self._chains(token_ids[:-1]):
            if (scope, chain) not in self._blocks:
                break
            num_blocks += 1
        return num_blocks * self._block_tokens

    def clear(self) -> int:
        """Forgets all and returns how many blocks those were."""
        num_blocks = len(self._blocks)
        self._blocks.clear()
        return num_blocks

    def _chains(self, token_ids: Sequence[int]) -> Iterator[int]:
        size, chain = self._block_tokens, 0
        for start in range(0, len(token_ids) - size + 1, size):
            chain = hash((chain, tuple(token_ids[start : start + size])))
            yield chain


def token_ids_of(packed: bytes) -> Sequence[int]:
    """Returns the ids that messages carry as little-endian int32."""
    return array("i", packed)
