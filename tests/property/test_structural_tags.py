"""Random structural tags: the grammar, the naive recogniser and the format's own library agree."""

import json
import random
from contextlib import suppress

import pytest

from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from support.grammar_texts import Texts
from support.grammars import tag as tag_grammar
from support.random_tags import RandomTags
from support.tag_texts import TagTexts

NUM_TAGS = 12
NUM_TEXTS = 3
MAX_BYTES = 30


def texts_near(tags: RandomTags, chooser: random.Random, ours: Texts, library: Texts) -> set[str]:
    """Returns texts of both, others that differ a little, and some of any sort."""
    found = {"", *(tags.text() for _ in range(NUM_TEXTS))}
    for _ in range(NUM_TEXTS):
        drawn = [ours.draw(chooser, max_bytes=MAX_BYTES)]
        with suppress(UnicodeDecodeError):  # The library's free text may be bytes of no text.
            drawn.append(library.draw(chooser, max_bytes=MAX_BYTES))
        for text in drawn:
            if text is not None:
                found |= {text, tags.changed(text), tags.changed(text)}
    return found


def counts_alike(text: str, tag: str) -> bool:
    """Returns whether the library counts the text's characters: it counts bytes of some."""
    return text.isascii() or "max_chars" not in tag


@pytest.mark.parametrize("seed", range(6))
def test_readings_of_random_tags_agree(seed: int):
    chooser = random.Random(seed)
    tags = RandomTags(chooser)
    num_taken = num_inside = 0

    for _ in range(NUM_TAGS):
        tag = tags.tag()
        text = json.dumps(tag)
        try:
            ours = TagTexts(tag, max_blank=1)
        except (UnsupportedConstraintError, ConstraintTooComplexError):
            continue
        library = Texts(tag_grammar(text))
        num_taken += 1
        for each in sorted(texts_near(tags, chooser, ours.grammar, library)):
            is_ours = ours.has(each)
            num_inside += is_ours
            if counts_alike(each, text):
                assert library.has(each) == is_ours, f"{each!r} of {text}"

    assert num_taken > NUM_TAGS // 3
    assert num_inside > num_taken
