"""Counts that go too far are refused by their place; nearer ones hold to the last character."""

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest

from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.vocabulary import Vocabulary
from antiphon_server.constraints.choices import plan_choices
from antiphon_server.constraints.expressions import plan_expression
from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
from antiphon_server.constraints.languages.derivatives import matches
from antiphon_server.constraints.languages.terms import both, literal, one_of, repeat
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from support.grammar_walks import END, allowed_texts, token_of
from support.schema_texts import refusal_of

LONG = b"x" * 64
BACKENDS = Backends(
    Vocabulary(tokens=(*(bytes([value]) for value in range(256)), LONG), control_ids=frozenset())
)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"maxLength": 65_536}, "/maxLength"),
        ({"maxLength": 100_000}, "/maxLength"),
        ({"minLength": 65_536}, "/minLength"),
        ({"pattern": "^[a-z]{1,100000}$"}, "/pattern"),
        ({"pattern": "^(ab){9000}$"}, "/pattern"),
        ({"pattern": "^([a-z]{1,20} ?){1,100}$"}, "/pattern"),
        ({"pattern": r"\S", "maxLength": 16_001}, "/maxLength"),
        ({"allOf": [{"pattern": "^a+b+$"}, {"maxLength": 20_000}]}, "/allOf/1/maxLength"),
        ({"const": "x" * 16_001}, "/const"),
        ({"patternProperties": {"^x{1,20000}y$": {}}}, "/patternProperties"),
        ({"propertyNames": {"pattern": "a", "maxLength": 20_000}}, "/propertyNames/maxLength"),
        ({"properties": {"p": {"not": {"maxLength": 70_000}}}}, "/properties/p/not/maxLength"),
    ],
)
def test_what_counts_too_far_is_refused_by_its_place(schema: dict[str, object], path: str):
    assert refusal_of(schema).path == path


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "contains": {"const": 1}, "minContains": 100_000},
        {"oneOf": [{"required": [f"a{n}"]} for n in range(600)]},
    ],
)
def test_what_is_too_wide_is_too_complex(schema: object):
    with pytest.raises(ConstraintTooComplexError):
        plan_schema(json.dumps(schema), max_blank=0, limits=PlanLimits())


@pytest.mark.parametrize("expression", ["x{1,100000}", "(ab){9000}", "(x|xx|xxx){1,1600}"])
def test_expressions_that_count_too_far_are_refused(expression: str):
    with pytest.raises(UnsupportedConstraintError) as refusal:
        plan_expression(expression)
    assert refusal.value.path == "position 0"


def test_a_choice_that_is_too_long_is_refused_by_its_number():
    with pytest.raises(UnsupportedConstraintError) as refusal:
        plan_choices(["a", "b" * 64_001])
    assert refusal.value.path == "options[1]"


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        ({"pattern": "^[a-z ]+$", "maxLength": 65_535}, 65_535),
        ({"pattern": "^(x{1,100}){2,150}$"}, 15_000),
        ({"pattern": "[^ ]", "maxLength": 6_000}, 6_000),
    ],
)
def test_a_string_may_be_as_long_as_its_bound_and_no_longer(schema: dict[str, object], most: int):
    text = json.dumps({"type": "string", **schema})
    grammar = plan_schema(text, max_blank=0, limits=PlanLimits())
    matcher, name = BACKENDS.compile(grammar).matcher(), GrammarBackend.LLGUIDANCE
    masks = np.zeros((1, (BACKENDS.vocabulary.size >> 5) + 1), np.int32)

    for token_id in [ord('"'), *[token_of(BACKENDS, LONG)] * (most // 64), *b"x" * (most % 64)]:
        assert BACKENDS[name].fill([matcher], masks, [0]) == [None]
        matcher.accept(token_id)

    assert allowed_texts(BACKENDS, name, matcher) == {b'"'}
    matcher.accept(ord('"'))
    assert allowed_texts(BACKENDS, name, matcher) == {END}


def test_a_bound_that_no_output_reaches_is_none():
    grammar = plan_schema(
        '{"type": "string", "maxLength": 9007199254740991}', max_blank=0, limits=PlanLimits()
    )
    free = plan_schema('{"type": "string"}', max_blank=0, limits=PlanLimits())

    assert grammar == free


BOUNDS: Sequence[tuple[int, int | None]] = (
    (0, 1), (0, 2), (1, 2), (1, None), (2, 2), (2, 3), (3, 4), (4, 5), (0, None), (3, None),
)  # fmt: skip


@pytest.mark.parametrize("inner", BOUNDS)
@pytest.mark.parametrize("outer", BOUNDS)
def test_repetitions_of_repetitions_have_the_lengths_of_both(
    inner: tuple[int, int | None], outer: tuple[int, int | None]
):
    made = repeat(repeat(literal("a"), *inner), *outer)

    def is_made(length: int) -> bool:
        """Tries every number of parts; more than there are letters would be needless."""
        low, high = outer
        counts = range(low, (length + low if high is None else high) + 1)
        most = length if inner[1] is None else inner[1]
        return any(count * inner[0] <= length <= count * most for count in counts)

    for length in range(30):
        assert matches(made, "a" * length) == is_made(length), length


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(BOUNDS, 2)))
def test_runs_that_hold_together_are_one(
    one: tuple[int, int | None], other: tuple[int, int | None]
):
    letters, digits = one_of(((ord("a"), ord("z")),)), one_of(((ord("0"), ord("m")),))
    runs = repeat(letters, *one), repeat(digits, *other)

    made = both(*runs)

    for length, letter in itertools.product(range(7), "bz1"):
        text = letter * length
        assert matches(made, text) == all(matches(run, text) for run in runs), text
