"""Looks for a text that an expression or a grammar forbids and that is producible, or the reverse.

What judges knows nothing of the libraries: Python's `re`, and a recogniser of a few lines.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.base import GrammarError
from antiphon_server.constraints.ebnf import check_rules_end
from antiphon_server.constraints.expressions import plan_expression
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from support import random_grammars
from support.grammar_texts import Texts
from support.random_grammars import TooLong, make_grammar
from support.random_patterns import Pattern, PatternMaker
from support.schema_attack import Refused

_NUM_TEXTS = 8
_NUM_WALKS = 4
_MAX_BYTES = 60
_MAX_CHARACTERS = 12
"""Of texts that are judged: judges try every way there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is attacked."""

    text: str
    plan: Callable[[], Grammar]
    allows: Callable[[str], bool]
    likely: Callable[[], Iterable[str]]
    """Draws texts that it allows, or nearly allows."""


def any_expression(chooser: random.Random) -> Target:
    """Returns a random regular expression as a target."""
    maker = PatternMaker(chooser)
    return _target_of(maker.make(), maker)


def any_edged_expression(chooser: random.Random) -> Target:
    """Returns a random regular expression of characters and edges of words as a target."""
    maker = PatternMaker(chooser)
    return _target_of(maker.make_edged(), maker)


def _target_of(pattern: Pattern, maker: PatternMaker) -> Target:
    judge = pattern.judge

    def likely() -> Iterator[str]:
        text = pattern.sample()
        yield from (text, maker.near(text), maker.any_text())

    return Target(
        text=pattern.text,
        plan=lambda: plan_expression(pattern.text),
        allows=lambda text: judge.fullmatch(text) is not None,
        likely=likely,
    )


def any_grammar(chooser: random.Random) -> Target:
    """Returns a random EBNF grammar as a target."""
    grammar = make_grammar(chooser)
    letters = random_grammars.LETTERS

    def plan() -> Grammar:
        check_rules_end(grammar.text, max_depth=16)
        return Grammar(backend=GrammarBackend.XGRAMMAR, text=grammar.text)

    def likely() -> Iterator[str]:
        text = "".join(chooser.choices(letters, k=chooser.randint(0, 5)))
        yield text
        try:
            text = grammar.draw(chooser)
        except TooLong:
            return
        place = chooser.randint(0, len(text))
        yield from (text, text[:place] + chooser.choice(letters) + text[place:], text[:place])

    return Target(text=grammar.text, plan=plan, allows=grammar.has, likely=likely)


def wrongs_of(target: Target, chooser: random.Random) -> Iterator[str]:
    """Yields what is wrong about texts, and about walks through the masks.

    Raises:
        Refused: it isn't taken, so there is nothing to attack.
    """
    try:
        texts = Texts(target.plan())
    except UnsupportedConstraintError as refusal:
        raise Refused(refusal.message) from refusal
    except (ConstraintTooComplexError, GrammarError) as refusal:
        raise Refused(str(refusal)) from refusal
    for _ in range(_NUM_TEXTS):
        for text in target.likely():
            if len(text) <= _MAX_CHARACTERS and texts.has(text) != target.allows(text):
                what = "is allowed and not" if target.allows(text) else "is forbidden and"
                yield f"{text!r} {what} producible"
    for _ in range(_NUM_WALKS):
        try:
            drawn = texts.draw(chooser, max_bytes=_MAX_BYTES)
        except (AssertionError, GrammarError, UnicodeDecodeError) as error:
            yield str(error)
            continue
        if drawn is not None and len(drawn) <= _MAX_CHARACTERS and not target.allows(drawn):
            yield f"{drawn!r} is forbidden and was drawn"
