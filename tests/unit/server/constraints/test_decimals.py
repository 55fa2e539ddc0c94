"""Numbers as languages, compared in exact decimal arithmetic."""

from decimal import Decimal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon_server.constraints.languages.decimals import (
    INTEGERS,
    at_least,
    at_most,
    beyond_step,
    multiples_of_step,
    spellings,
)
from antiphon_server.constraints.languages.derivatives import matches

_NUMBERS = st.decimals(min_value=-1200, max_value=1200, places=2).map(lambda n: n.normalize() + 0)


def written(number: Decimal) -> str:
    return format(number, "f")


@settings(deadline=None, max_examples=150)
@given(_NUMBERS, _NUMBERS, st.booleans())
@example(Decimal(0), Decimal("0.1"), True)
@example(Decimal("0.3"), Decimal("0.30"), True)
@example(Decimal(-5), Decimal(-6), False)
@example(Decimal(100), Decimal(99), False)
def test_a_range_has_exactly_the_numbers_on_its_side(bound: Decimal, number: Decimal, strict: bool):
    above = number > bound if strict else number >= bound
    below = number < bound if strict else number <= bound
    assert matches(at_least(bound, strictly=strict), written(number)) == above
    assert matches(at_most(bound, strictly=strict), written(number)) == below
    assert matches(spellings([bound]), written(number)) == (number == bound)


@given(_NUMBERS)
def test_whole_and_fractional_numbers_are_told_apart(number: Decimal):
    assert matches(beyond_step(0), written(number)) == (number != int(number))
    assert matches(INTEGERS, written(number)) == (number == int(number))


def test_a_number_has_all_its_spellings():
    two = spellings([Decimal(2)])
    assert [text for text in ("2", "2.0", "2.000") if not matches(two, text)] == []
    assert [text for text in ("02", "2.", "2.01", "20") if matches(two, text)] == []


def test_steps_of_a_power_of_ten_bound_the_digits_behind_the_point():
    cents = multiples_of_step(2)
    assert matches(cents, "-3.25")
    assert not matches(cents, "3.255")
