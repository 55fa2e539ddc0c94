"""Sets of characters: sorted, disjoint ranges of code points that UTF-8 can carry."""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

CharSet: TypeAlias = tuple[tuple[int, int], ...]

MAX_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
ALL: Final[CharSet] = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, MAX_CODE_POINT))


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Returns the set of all characters in some ranges, both ends included."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def charset_of(characters: str) -> CharSet:
    """Returns the set of some characters."""
    return charset((ord(character), ord(character)) for character in characters)


def union(*sets: CharSet) -> CharSet:
    """Returns all characters of any of the sets."""
    return charset(pair for each in sets for pair in each)


def negation(chars: CharSet) -> CharSet:
    """Returns all characters but those of the set."""
    gaps = []
    start = 0
    for low, high in chars:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, MAX_CODE_POINT))
    return charset(gaps)


def intersection(one: CharSet, other: CharSet) -> CharSet:
    """Returns the characters of both sets."""
    common = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            common.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def contains(chars: CharSet, code_point: int) -> bool:
    """Says whether the character is in the set."""
    return any(low <= code_point <= high for low, high in chars)


def size(chars: CharSet) -> int:
    """Returns how many characters there are in the set."""
    return sum(high - low + 1 for low, high in chars)


@lru_cache(maxsize=64)
def category(name: str) -> CharSet:
    """Returns the characters of a general category of Unicode, such as `L` or `Lu`."""
    members = []
    for low, high in ALL:
        for code_point in range(low, high + 1):
            if unicodedata.category(chr(code_point)).startswith(name):
                members.append((code_point, code_point))
    return charset(members)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low > high:
            continue
        if high < first or low > last:
            yield low, high
            continue
        if low < first:
            yield low, first - 1
        if high > last:
            yield last + 1, high


DIGIT: Final = charset([(0x30, 0x39)])
WORD: Final = charset([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE: Final = union(
    charset([(0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)]),
    charset_of("\x20\xa0\u1680\u202f\u205f\u3000\ufeff"),
)
WHITE_SPACE: Final = intersection(SPACE, negation(charset_of("\ufeff")))
"""Those that are white space to Unicode, and so to others than ECMA-262, too."""
LINE_END: Final = charset_of("\n\r\u2028\u2029")
