"""Whether a text is a whole of a grammar, by the engine's own matchers."""

from collections.abc import Iterator, Sequence

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.constraints.planning import Compiled


class Speller:
    """Spells texts in a vocabulary's tokens, one of many ways: grammars are the same in all."""

    def __init__(self, tokens: Sequence[bytes], control_ids: frozenset[int]) -> None:
        """Takes the tokens' bytes by id, and the ids that no text is spelt with."""
        self._ids = {
            token: token_id
            for token_id, token in enumerate(tokens)
            if token and token_id not in control_ids
        }
        self._longest = max(map(len, self._ids), default=0)

    def spell(self, text: bytes) -> Iterator[int]:
        """Yields token ids. Raises ValueError: there are none for a byte."""
        start = 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    break
            else:
                raise ValueError(f"no token has the byte {text[start]}")
            yield token_id
            start = end


def is_whole(compiled: Compiled, text: str, speller: Speller) -> bool:
    """Returns whether a text is a whole of a grammar."""
    matcher = compiled.matcher()
    try:
        for token_id in speller.spell(text.encode()):
            matcher.accept(token_id)
    except (AntiphonError, ValueError):
        return False
    return matcher.may_end()
