"""How far a language counts: the library that follows it has a state for each count, and a limit.

An output can't go on behind so many states. So what may need more is refused before its beginning.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from antiphon_server.constraints.languages import charsets
from antiphon_server.constraints.languages.derivatives import (
    derivative,
    first_chars,
    representatives,
)
from antiphon_server.constraints.languages.terms import NOTHING, Kind, Term

MAX_LENGTH: Final = 65_535
"""Of texts of any characters of a set, told apart by their length alone."""
MAX_COUNT: Final = 16_000
"""Of all else, where a count may meet several states of what stands beside it."""

MAX_UNCLEAR: Final = 1_000
"""Where what is counted may end in several places, each of which is followed. Measured: from twice
as many on, outputs fail."""
_MAX_STATES: Final = 500


@lru_cache(maxsize=1024)
def find_excess(term: Term) -> str | None:
    """Returns why a language can't be followed to the end of all its texts; None: it can."""
    most = MAX_LENGTH if is_run(term) else MAX_COUNT
    count = num_counts(term)
    if count > most:
        return f"it counts to {count}, and at most {most} can be counted here; use a lower bound"
    for repetition in _repetitions(term):
        count = num_counts(repetition)
        if count > MAX_UNCLEAR and _is_unclear(repetition.parts[0]):
            return (
                f"it counts to {count}, and at most {MAX_UNCLEAR} can be counted where what is "
                "repeated may end in several places; use a lower bound, or say where it ends"
            )
    return None


def is_run(term: Term) -> bool:
    """Whether a language is any texts of some characters, so long and no longer."""
    return term.kind is Kind.REPEAT and term.parts[0].kind is Kind.CHARS


def num_counts(term: Term) -> int:
    """Returns about how many places of its texts a language tells apart, at most."""
    match term.kind:
        case Kind.CHARS:
            return 1
        case Kind.TEXT:
            return len(term.text)
        case Kind.SEQUENCE:
            return sum(map(num_counts, term.parts))
        case Kind.REPEAT:
            times = term.high if term.high is not None else max(term.low, 1)
            return times * num_counts(term.parts[0])
        case Kind.BOTH:
            lengths = [length for part in term.parts if (length := _longest(part)) is not None]
            return min(lengths) if lengths else max(map(num_counts, term.parts))
        case _:
            return max(map(num_counts, term.parts), default=0)


def _repetitions(term: Term) -> Iterator[Term]:
    """Yields what is counted within a language."""
    if term.kind is Kind.REPEAT and (term.low > 1 or term.high not in (None, 1)):
        yield term
    for part in term.parts:
        yield from _repetitions(part)


def _is_unclear(part: Term) -> bool:
    """Whether a text of a language may go on as if another of its texts began there."""
    begins = first_chars(part)
    seen, waiting = {part}, [part]
    while waiting:
        state = waiting.pop()
        goes_on = first_chars(state)
        if state is not part and state.nullable and charsets.intersection(goes_on, begins):
            return True
        for code_point in representatives(state):
            after = derivative(state, code_point)
            if after not in seen and after != NOTHING:
                seen.add(after)
                waiting.append(after)
        if len(seen) > _MAX_STATES:
            return True
    return False


def _longest(term: Term) -> int | None:
    """Returns the length of a language's longest text, at most; None: there is no longest."""
    if term.kind is Kind.COMPLEMENT or (term.kind is Kind.REPEAT and term.high is None):
        return None
    if term.kind is Kind.BOTH:
        lengths = [length for part in term.parts if (length := _longest(part)) is not None]
        return min(lengths, default=None)
    if any(_longest(part) is None for part in term.parts):
        return None
    return num_counts(term)
