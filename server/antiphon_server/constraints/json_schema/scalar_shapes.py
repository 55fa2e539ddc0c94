"""Numbers and strings from the facts about them."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import lcm

from antiphon_server.constraints.json_schema.document import plain_number
from antiphon_server.constraints.json_schema.goals import (
    Above,
    Below,
    Fact,
    Multiple,
    NumberAmong,
    TextIn,
    Truths,
    Whole,
)
from antiphon_server.constraints.json_schema.number_runs import number_run
from antiphon_server.constraints.json_schema.shapes import (
    BooleanShape,
    NumberShape,
    Step,
    StringShape,
)
from antiphon_server.constraints.languages.counting import find_excess, num_counts
from antiphon_server.constraints.languages.decimals import (
    DECIMALS,
    NUMBERS,
    at_least,
    at_most,
    beyond_step,
    multiples_of_step,
    spellings,
)
from antiphon_server.constraints.languages.derivatives import finite_texts, is_empty
from antiphon_server.constraints.languages.terms import NOTHING, Term, both, complement, literals
from antiphon_server.constraints.refusals import UnsupportedConstraintError

MAX_STATES = 400
"""States of a language that are looked at to find out whether it has a text."""
_MAX_MODULUS = 1000
_MAX_LISTED = 2000


def boolean_shape(facts: Iterable[Fact]) -> BooleanShape | None:
    """Returns the booleans that fit the facts; None: there are none."""
    values = frozenset({True, False})
    for fact in facts:
        if isinstance(fact, Truths):
            values &= fact.values
    return BooleanShape(values) if values else None


def string_shape(facts: Iterable[Fact]) -> StringShape | None:
    """Returns the strings that fit the facts; None: there are none.

    Raises:
        UnsupportedConstraintError: what they count takes too many states.
    """
    texts = [fact for fact in facts if isinstance(fact, TextIn)]
    language = narrowed(both(*(fact.language for fact in texts)))
    if (excess := find_excess(language)) is not None:
        most = max(texts, key=lambda fact: num_counts(fact.language))
        raise UnsupportedConstraintError(most.path, f"beside what else holds for it, {excess}")
    return None if language == NOTHING else StringShape(language)


@lru_cache(maxsize=1024)
def narrowed(language: Term) -> Term:
    """Returns the same language, simpler where it is small or empty."""
    if language.is_plain:
        return language
    texts = finite_texts(language, _MAX_LISTED)
    if texts is not None:
        return literals(texts)
    return NOTHING if is_empty(language, max_states=MAX_STATES) else language


def number_shapes(facts: Iterable[Fact]) -> Iterator[NumberShape]:
    """Yields the ways a number may look that fits the facts; together they are all of them.

    Raises:
        UnsupportedConstraintError: they can't be told apart from others digit by digit.
        ConstraintTooComplexError: it takes too much to.
    """
    numbers = [fact for fact in facts if isinstance(fact, _NUMBER_FACTS)]
    listed = [fact.numbers for fact in numbers if isinstance(fact, NumberAmong) and fact.holds]
    if listed:
        chosen = frozenset.intersection(*listed)
        chosen = frozenset(each for each in chosen if all(_fits(each, fact) for fact in numbers))
        if chosen:
            yield NumberShape(literals(plain_number(number) for number in chosen), numbers=chosen)
        return
    if not numbers:
        yield NumberShape(NUMBERS)
        return
    is_whole = any(isinstance(fact, Whole) and fact.is_whole for fact in numbers)
    multiples = [fact for fact in numbers if isinstance(fact, Multiple)]
    for texts, steps in _stepped(multiples, is_whole=is_whole):
        language = narrowed(both(texts, *(_texts(fact) for fact in numbers if _has_texts(fact))))
        shape = NumberShape(language, steps)
        if language != NOTHING and not (steps and number_run(shape) is None):
            yield shape


_NUMBER_FACTS = (Above, Below, Whole, Multiple, NumberAmong)


def _fits(number: Decimal, fact: Fact) -> bool:
    match fact:
        case Above():
            return number > fact.bound or (number == fact.bound and not fact.strictly)
        case Below():
            return number < fact.bound or (number == fact.bound and not fact.strictly)
        case Whole():
            return (number == int(number)) == fact.is_whole
        case Multiple():
            ratio = Fraction(number) / Fraction(fact.step)
            return (ratio.denominator == 1) == fact.holds
        case NumberAmong():
            return (number in fact.numbers) == fact.holds
        case _:
            return True


def _has_texts(fact: Fact) -> bool:
    return not isinstance(fact, Multiple) and not (isinstance(fact, Whole) and fact.is_whole)


def _texts(fact: Fact) -> Term:
    match fact:
        case Above():
            return at_least(fact.bound, strictly=fact.strictly)
        case Below():
            return at_most(fact.bound, strictly=fact.strictly)
        case NumberAmong():
            return complement(spellings(fact.numbers))
        case _:
            return beyond_step(0)


def _stepped(
    multiples: list[Multiple], *, is_whole: bool
) -> Iterator[tuple[Term, tuple[Step, ...]]]:
    """The numbers that are multiples of some steps, as texts and what can't be said as texts."""
    wanted = [Fraction(fact.step) for fact in multiples if fact.holds]
    unwanted = [fact for fact in multiples if not fact.holds]
    if is_whole:
        wanted.append(Fraction(1))
    if wanted:
        scale = lcm(*(each.denominator for each in wanted))
        common = Fraction(lcm(*(int(each * scale) for each in wanted)), scale)
        num_digits = _num_digits(common)
        first = [_step(common, num_digits, multiples, holds=True)]
    else:
        num_digits = max((_num_digits(Fraction(fact.step)) for fact in unwanted), default=0)
        first = []
        if not unwanted:
            yield DECIMALS, ()
            return
        yield beyond_step(num_digits), ()
    steps = [
        *first,
        *(_step(Fraction(fact.step), num_digits, [fact], holds=False) for fact in unwanted),
    ]
    if any(step.modulus == 1 and not step.holds for step in steps):
        return
    yield multiples_of_step(num_digits), tuple(step for step in steps if step.modulus > 1)


def _step(step: Fraction, num_digits: int, facts: list[Multiple], *, holds: bool) -> Step:
    """A step in units of the last decimal place that it, or the numbers, may have."""
    num_digits = max(num_digits, _num_digits(step))
    modulus = int(step * 10**num_digits)
    _check_modulus(modulus, facts)
    return Step(modulus, num_digits, holds)


def _check_modulus(modulus: int, multiples: list[Multiple]) -> None:
    if modulus > _MAX_MODULUS:
        path = next((fact.path for fact in multiples), "")
        raise UnsupportedConstraintError(
            path,
            f"steps with more than {_MAX_MODULUS} remainders can't be enforced; this has {modulus}",
        )


def _num_digits(step: Fraction) -> int:
    num_digits = 0
    while (step * 10**num_digits).denominator != 1:
        num_digits += 1
    return num_digits
