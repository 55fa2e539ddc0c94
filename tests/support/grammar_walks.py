"""Says texts to matchers token by token, and reads their masks."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import Matcher, mask_words

END = b"<end of output>"


def token_of(backends: Backends, text: bytes) -> int:
    """Returns the id of the token that is this text and no control token."""
    vocabulary = backends.vocabulary
    return next(
        token_id
        for token_id, token in enumerate(vocabulary.tokens)
        if token == text and token_id not in vocabulary.control_ids
    )


def split(backends: Backends, text: str) -> list[int]:
    """Returns ids that spell a text, each the longest token that fits."""
    vocabulary = backends.vocabulary
    by_text = {
        token: token_id
        for token_id, token in enumerate(vocabulary.tokens)
        if token and token_id not in vocabulary.control_ids
    }
    rest, ids = text.encode(), []
    while rest:
        length = next(n for n in range(len(rest), 0, -1) if rest[:n] in by_text)
        ids.append(by_text[rest[:length]])
        rest = rest[length:]
    return ids


def say(backends: Backends, matcher: Matcher, text: str) -> None:
    """Has a matcher accept a text."""
    for token_id in split(backends, text):
        matcher.accept(token_id)


def mask_of(backends: Backends, name: GrammarBackend, matcher: Matcher) -> NDArray[np.uint8]:
    """Returns a matcher's mask as a 0 or 1 for each token; the last is the end, and padding 0."""
    masks = np.zeros((1, mask_words(backends.vocabulary.size)), np.int32)
    errors = backends[name].fill([matcher], masks, [0])
    assert errors == [None], errors
    return np.unpackbits(masks[0].view(np.uint8), bitorder="little")


def allowed_texts(backends: Backends, name: GrammarBackend, matcher: Matcher) -> set[bytes]:
    """Returns the texts of the tokens that a matcher allows; the end is `END`."""
    texts: Iterable[bytes] = (*backends.vocabulary.tokens, END)
    bits = mask_of(backends, name, matcher)
    return {text for text, bit in zip(texts, bits, strict=False) if bit}
