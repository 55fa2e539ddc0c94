"""Looks for a value that a schema forbids and its grammar produces, or the other way round."""

import random
from collections.abc import Iterable, Iterator
from itertools import chain

from antiphon_engine.api.grammar import Grammar
from antiphon_engine.grammar.base import GrammarError
from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from support.directed_schemas import Directed
from support.grammar_texts import Texts
from support.json_spellings import Json, Spelling, odd_texts, reordered_texts, valid_texts, write
from support.random_schemas import ValueMaker, nearly
from support.schema_oracle import SchemaOracle, Undecidable

_NUM_VALUES = 6
_NUM_WALKS = 4
_MAX_BYTES = 400


class Refused(Exception):  # noqa: N818 - an answer
    """The schema is not taken, so there is nothing to attack.

    Attributes:
        path: What can't be enforced, as a JSON pointer into the schema; None: none was told.
    """

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


def grammar_of(schema: Json) -> tuple[Grammar, Texts]:
    """Returns what the pipeline makes of a schema.

    Raises:
        Refused: It doesn't take it, and says where.
    """
    try:
        grammar = plan_schema(write(schema, Spelling()), max_blank=2, limits=PlanLimits())
        return grammar, Texts(grammar)
    except UnsupportedConstraintError as refusal:
        raise Refused(refusal.message, refusal.path) from refusal
    except (ConstraintTooComplexError, GrammarError) as refusal:
        raise Refused(str(refusal)) from refusal


def wrong_values(schema: Json, chooser: random.Random) -> Iterator[str]:
    """Yields what is wrong about values that are likely to satisfy a schema, or nearly do."""
    sides = _sides(schema)
    values = ValueMaker(chooser, schema)
    for _ in range(_NUM_VALUES):
        value = values.make()
        yield from _wrongs_among((value, nearly(chooser, value)), schema, sides)


def wrong_edges(made: Directed, chooser: random.Random) -> Iterator[str]:
    """Yields what is wrong about values that a schema decides about, and about one drawn text."""
    sides = _sides(made.schema)
    yield from _wrongs_among(made.values, made.schema, sides)
    yield from _wrongs_drawn(1, chooser, sides)


def wrong_drawings(schema: Json, chooser: random.Random) -> Iterator[str]:
    """Yields what is wrong about texts drawn from the grammar."""
    yield from _wrongs_drawn(_NUM_WALKS, chooser, _sides(schema))


_Sides = tuple[Texts, SchemaOracle]


def _sides(schema: Json) -> _Sides:
    try:
        oracle = SchemaOracle(schema)
    except Undecidable as loop:
        raise Refused(str(loop)) from loop
    return grammar_of(schema)[1], oracle


def _wrongs_among(values: Iterable[Json], schema: Json, sides: _Sides) -> Iterator[str]:
    texts, oracle = sides
    for value in values:
        written = valid_texts(value, schema)
        if oracle.accepts(value):
            if not any(map(texts.has, chain(written, reordered_texts(value)))):
                yield f"{written[0]} is valid and not producible"
            continue
        for text in (*written, *odd_texts(value, schema)):
            if texts.has(text):
                yield f"{text} is invalid and producible"


def _wrongs_drawn(num_texts: int, chooser: random.Random, sides: _Sides) -> Iterator[str]:
    texts, oracle = sides
    for _ in range(num_texts):
        try:
            drawn = texts.draw(chooser, max_bytes=_MAX_BYTES)
        except (AssertionError, GrammarError) as error:
            yield str(error)
            continue
        if drawn is not None and not oracle.accepts_text(drawn):
            yield f"{drawn} is invalid and was drawn"
