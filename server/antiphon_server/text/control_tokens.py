"""Added tokens that steer a model, and finding them in text."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlToken:
    """An added token. The flags say what encoding does around it.

    Attributes:
        eats_left: White space in front belongs to the token.
        eats_right: White space behind belongs to the token.
        whole_word: It counts only where no letter or digit adjoins.
        normalized: It is looked for in the normalized text.
    """

    token_id: int
    text: str
    eats_left: bool = False
    eats_right: bool = False
    whole_word: bool = False
    normalized: bool = False


class Occurrence(NamedTuple):
    """A control token in a text, with the white space that belongs to it."""

    start: int
    end: int
    token: ControlToken


class ControlTokens:
    """All control tokens of a tokenizer.

    Attributes:
        by_text: The tokens by their text.
        ids: Their ids.
    """

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self.by_text: Mapping[str, ControlToken] = {token.text: token for token in tokens}
        self.ids = frozenset(token.token_id for token in self.by_text.values())
        # Encoding takes the leftmost token and of those the longest.
        longest_first = sorted(self.by_text, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, text: str) -> Iterator[Occurrence]:
        """The tokens in the text, in order, as encoding takes them."""
        for match in self.pattern.finditer(text):
            token = self.by_text[match.group()]
            start, end = match.span()
            if token.whole_word and _adjoins_word(text, start, end):
                continue
            if token.eats_left:
                start = len(text[:start].rstrip())
            if token.eats_right:
                end = len(text) - len(text[end:].lstrip())
            yield Occurrence(start, end, token)


def _adjoins_word(text: str, start: int, end: int) -> bool:
    before = text[start - 1 : start]
    after = text[end : end + 1]
    return bool(re.match(r"\w", before) or re.match(r"\w", after))
