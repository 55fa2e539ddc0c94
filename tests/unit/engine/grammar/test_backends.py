"""Both backends: masks, ends, blanks, errors, over vocabularies of both spellings."""

import json
from pathlib import Path

import numpy as np
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import GrammarError, mask_words
from support.grammar_walks import END, allowed_texts, mask_of, say, token_of
from support.grammars import regex, schema, tag
from support.tiny_tokenizers import (
    save_byte_fallback_tokenizer,
    save_byte_level_tokenizer,
    save_metaspace_tokenizer,
)

PADDED_SIZE = 1056
"""Whole words, so that the bit of the end has a word of its own."""

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["x", "name"],
    "additionalProperties": False,
}


@pytest.fixture(
    scope="module",
    params=[save_byte_level_tokenizer, save_byte_fallback_tokenizer, save_metaspace_tokenizer],
    ids=["byte_level", "byte_fallback", "metaspace"],
)
def backends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backends:
    checkpoint: Path = tmp_path_factory.mktemp("checkpoint")
    request.param(checkpoint)
    return Backends.load(checkpoint, vocabulary_size=PADDED_SIZE)


each_backend = pytest.mark.parametrize("name", list(GrammarBackend))


@each_backend
def test_an_object_of_its_schema_may_be_said_and_then_only_the_end(
    backends: Backends, name: GrammarBackend
) -> None:
    matcher = backends.compile(schema(POINT, name)).matcher()

    say(backends, matcher, '{"x":-12,"name":"Zoë 🦆"}')

    assert matcher.may_end()
    assert allowed_texts(backends, name, matcher) == {END}


@each_backend
def test_what_the_schema_does_not_allow_is_not_in_the_mask(
    backends: Backends, name: GrammarBackend
) -> None:
    matcher = backends.compile(schema(POINT, name)).matcher()

    say(backends, matcher, '{"x":')

    beginnings = {text[:1] for text in allowed_texts(backends, name, matcher)}
    assert beginnings == {b"-", *(b"%d" % n for n in range(10))}


@each_backend
def test_control_tokens_and_padding_are_never_allowed_inside_of_text(
    backends: Backends, name: GrammarBackend
) -> None:
    matcher = backends.compile(schema({"type": "string"}, name)).matcher()
    say(backends, matcher, '"')

    allowed = np.flatnonzero(mask_of(backends, name, matcher))

    assert len(allowed) > 500
    assert backends.vocabulary.control_ids.isdisjoint(allowed)
    assert max(allowed) < backends.vocabulary.size
    assert all(backends.vocabulary.tokens[token_id] for token_id in allowed)


@each_backend
def test_blanks_are_bounded_as_told(backends: Backends, name: GrammarBackend) -> None:
    matcher = backends.compile(schema(POINT, name, max_blank=3)).matcher()
    say(backends, matcher, "{")
    say(backends, matcher, "\n  ")

    allowed = allowed_texts(backends, name, matcher)

    assert allowed
    assert not any(text.startswith((b" ", b"\n", b"\t", b"\r")) for text in allowed)


@each_backend
def test_no_blank_is_allowed_where_none_is_told(backends: Backends, name: GrammarBackend) -> None:
    matcher = backends.compile(schema(POINT, name)).matcher()
    say(backends, matcher, "{")

    assert not any(b" " in text for text in allowed_texts(backends, name, matcher))


@each_backend
def test_a_regex_holds_for_the_whole_output(backends: Backends, name: GrammarBackend) -> None:
    matcher = backends.compile(regex("(ja|nein)/[0-9]{2}", name)).matcher()

    assert not matcher.may_end()
    say(backends, matcher, "ja/4")
    assert END not in allowed_texts(backends, name, matcher)
    say(backends, matcher, "2")
    assert allowed_texts(backends, name, matcher) == {END}


@each_backend
def test_a_character_of_many_bytes_may_be_said_byte_by_byte(
    backends: Backends, name: GrammarBackend
) -> None:
    matcher = backends.compile(regex("🦆", name)).matcher()

    say(backends, matcher, "🦆")

    assert matcher.may_end()


@each_backend
def test_a_token_outside_of_the_grammar_is_refused(
    backends: Backends, name: GrammarBackend
) -> None:
    matcher = backends.compile(regex("[0-9]+", name)).matcher()

    with pytest.raises(GrammarError) as caught:
        matcher.accept(token_of(backends, b"a"))

    assert caught.value.reason == ErrorReason.INTERNAL


@each_backend
def test_a_fork_goes_its_own_way(backends: Backends, name: GrammarBackend) -> None:
    matcher = backends.compile(regex("a[bc]d", name)).matcher()
    say(backends, matcher, "a")

    other = matcher.fork()
    say(backends, matcher, "b")
    say(backends, other, "cd")

    assert not matcher.may_end()
    assert other.may_end()


@each_backend
@pytest.mark.parametrize("text", ["", "root ::= (", "start: /a(b/", 'start: "a" root ::= "a"'])
def test_a_broken_grammar_is_refused(backends: Backends, name: GrammarBackend, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        backends.compile(Grammar(backend=name, text=text))

    assert caught.value.reason == ErrorReason.UNSUPPORTED_CONSTRAINT
    assert ".cc" not in caught.value.message


def test_masks_of_a_batch_are_those_of_each_alone(backends: Backends) -> None:
    for name in GrammarBackend:
        texts = ["[0-9]+", "a[bc]d", "(yes|no)"]
        matchers = [backends.compile(regex(text, name)).matcher() for text in texts]
        masks = np.zeros((5, mask_words(backends.vocabulary.size)), np.int32)

        errors = backends[name].fill(matchers, masks, [4, 0, 2])

        assert errors == [None, None, None]
        for matcher, row in zip(matchers, (4, 0, 2), strict=True):
            bits = np.unpackbits(masks[row].view(np.uint8), bitorder="little")
            assert np.array_equal(bits, mask_of(backends, name, matcher))
        assert not masks[[1, 3]].any()


@each_backend
def test_a_control_token_may_be_asked_for_by_its_id(
    backends: Backends, name: GrammarBackend
) -> None:
    control_id = min(backends.vocabulary.control_ids)
    token = {"type": "token", "token": control_id}
    elements = [token, {"type": "const_string", "value": "go"}]
    asked = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    grammar = {
        GrammarBackend.XGRAMMAR: tag(json.dumps(asked)),
        GrammarBackend.LLGUIDANCE: Grammar(
            backend=GrammarBackend.LLGUIDANCE, text=f'start: <[{control_id}]> "go"'
        ),
    }[name]
    matcher = backends.compile(grammar).matcher()

    assert np.flatnonzero(mask_of(backends, name, matcher)).tolist() == [control_id]
    matcher.accept(control_id)
    say(backends, matcher, "go")
    assert matcher.may_end()


@each_backend
def test_an_added_token_that_shows_is_written_by_its_text(
    backends: Backends, name: GrammarBackend
) -> None:
    matcher = backends.compile(regex("<tool_call>[0-9]</tool_call>", name)).matcher()

    assert b"<tool_call>" in allowed_texts(backends, name, matcher)
    matcher.accept(token_of(backends, b"<tool_call>"))
    say(backends, matcher, "7</tool_call>")

    assert matcher.may_end()
