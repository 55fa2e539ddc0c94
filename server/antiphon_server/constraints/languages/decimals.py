"""Numbers as JSON writes them, without exponents, as languages: ranges and exact comparisons."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from antiphon_server.constraints.languages.charsets import DIGIT, charset
from antiphon_server.constraints.languages.terms import (
    EMPTY,
    NOTHING,
    Term,
    choice,
    literal,
    one_of,
    optional,
    repeat,
    sequence,
)

_DIGIT: Final = one_of(DIGIT)
_DIGITS: Final = repeat(_DIGIT, 0, None)
_NONZERO: Final = one_of(charset([(0x31, 0x39)]))
_MINUS: Final = literal("-")
_POINT: Final = literal(".")
_ZEROS: Final = repeat(literal("0"), 0, None)
_WHOLE: Final = choice(literal("0"), sequence(_NONZERO, _DIGITS))
_FRACTION: Final = optional(sequence(_POINT, _DIGIT, _DIGITS))
_UNSIGNED: Final = sequence(_WHOLE, _FRACTION)
_EXPONENT: Final = sequence(
    choice(literal("e"), literal("E")),
    optional(choice(literal("+"), literal("-"))),
    repeat(_DIGIT, 1, 2),
)

INTEGERS: Final = sequence(optional(_MINUS), _WHOLE)
DECIMALS: Final = sequence(optional(_MINUS), _UNSIGNED)
NUMBERS: Final = sequence(DECIMALS, optional(_EXPONENT))
"""With exponents as well, of two digits at most: more would be past what a double holds."""


def at_least(bound: Decimal, *, strictly: bool) -> Term:
    """Returns the numbers that aren't below the bound; strictly: that are above it."""
    if bound > 0:
        return _unsigned_at_least(bound, strictly=strictly)
    if bound == 0:
        return _unsigned_at_least(bound, strictly=True) if strictly else _UNSIGNED
    return choice(
        _UNSIGNED, sequence(_MINUS, _unsigned_at_most(bound.copy_negate(), strictly=strictly))
    )


def at_most(bound: Decimal, *, strictly: bool) -> Term:
    """Returns the numbers that aren't above the bound; strictly: that are below it."""
    if bound < 0:
        return sequence(_MINUS, _unsigned_at_least(bound.copy_negate(), strictly=strictly))
    below = sequence(_MINUS, _unsigned_at_least(Decimal(0), strictly=True))
    return choice(below, _unsigned_at_most(bound, strictly=strictly))


def spellings(values: Iterable[Decimal]) -> Term:
    """Returns all texts without exponent of some numbers."""
    return choice(*(_spellings_of(value) for value in values))


def multiples_of_step(num_digits: int) -> Term:
    """Returns the numbers with at most so many digits behind the point."""
    if num_digits == 0:
        return INTEGERS
    fraction = optional(sequence(_POINT, repeat(_DIGIT, 1, num_digits)))
    return sequence(optional(_MINUS), _WHOLE, fraction)


def beyond_step(num_digits: int) -> Term:
    """Returns the numbers that need more than so many digits behind the point."""
    shorter = repeat(_DIGIT, num_digits, num_digits)
    return sequence(optional(_MINUS), _WHOLE, _POINT, shorter, _ZEROS, _NONZERO, _DIGITS)


def _spellings_of(value: Decimal) -> Term:
    whole, fraction = _digits(value)
    sign = _MINUS if value < 0 else optional(_MINUS) if value == 0 else EMPTY
    if not fraction:
        return sequence(sign, literal(whole), optional(sequence(_POINT, literal("0"), _ZEROS)))
    return sequence(sign, literal(f"{whole}.{fraction}"), _ZEROS)


def _unsigned_at_least(bound: Decimal, *, strictly: bool) -> Term:
    whole, fraction = _digits(bound)
    above = sequence(_wholes_above(whole), _FRACTION)
    tail = _fractions_above(fraction, strictly=strictly)
    level = sequence(_POINT, tail)
    if not fraction and not strictly:
        level = choice(EMPTY, level)
    return choice(above, sequence(literal(whole), level))


def _unsigned_at_most(bound: Decimal, *, strictly: bool) -> Term:
    whole, fraction = _digits(bound)
    below = sequence(_wholes_below(whole), _FRACTION)
    if not fraction:
        zeros = optional(sequence(_POINT, literal("0"), _ZEROS))
        return below if strictly else choice(below, sequence(literal(whole), zeros))
    tail = optional(sequence(_POINT, _fractions_below(fraction, strictly=strictly)))
    return choice(below, sequence(literal(whole), tail))


def _fractions_above(digits: str, *, strictly: bool) -> Term:
    """Digits behind the point, at least one, that aren't below these."""
    if not digits:
        some = sequence(_ZEROS, _NONZERO, _DIGITS)
        return some if strictly else sequence(_DIGIT, _DIGITS)
    higher = sequence(_digits_between(chr(ord(digits[0]) + 1), "9"), _DIGITS)
    rest = _fractions_above(digits[1:], strictly=strictly)
    if len(digits) == 1 and not strictly:
        rest = choice(EMPTY, rest)
    return choice(higher, sequence(literal(digits[0]), rest))


def _fractions_below(digits: str, *, strictly: bool) -> Term:
    """Digits behind the point, at least one, that aren't above these, which end in no zero."""
    lower = sequence(_digits_between("0", chr(ord(digits[0]) - 1)), _DIGITS)
    if len(digits) == 1:
        return lower if strictly else choice(lower, sequence(literal(digits), _ZEROS))
    rest = optional(_fractions_below(digits[1:], strictly=strictly))
    return choice(lower, sequence(literal(digits[0]), rest))


def _wholes_above(whole: str) -> Term:
    if whole == "0":
        return sequence(_NONZERO, _DIGITS)
    options = [sequence(_NONZERO, repeat(_DIGIT, len(whole), None))]
    for index, digit in enumerate(whole):
        higher = _digits_between(chr(ord(digit) + 1), "9")
        rest = repeat(_DIGIT, len(whole) - index - 1, len(whole) - index - 1)
        options.append(sequence(literal(whole[:index]), higher, rest))
    return choice(*options)


def _wholes_below(whole: str) -> Term:
    if whole == "0":
        return NOTHING
    options = [literal("0")] if len(whole) > 1 or whole > "0" else []
    if len(whole) > 1:
        options.append(sequence(_NONZERO, repeat(_DIGIT, 0, len(whole) - 2)))
    for index, digit in enumerate(whole):
        lower = _digits_between("1" if index == 0 else "0", chr(ord(digit) - 1))
        rest = repeat(_DIGIT, len(whole) - index - 1, len(whole) - index - 1)
        options.append(sequence(literal(whole[:index]), lower, rest))
    return choice(*options)


def _digits_between(low: str, high: str) -> Term:
    return one_of(charset([(ord(low), ord(high))])) if low <= high <= "9" else NOTHING


def _digits(value: Decimal) -> tuple[str, str]:
    """The digits before and behind the point, without needless zeros."""
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")
