"""Parts of languages in which any text may follow, said so that the second library sees it.

Where it sees that any word or string may come next, it decides the fate of nearly all tokens at
once; where it doesn't, it tries every token, which takes milliseconds. It sees it of repeated
characters with something fixed behind them. So what is open in a language is said once more, as a
terminal of its own that ends in a mark which hardly anyone writes. That is needless for what is
matched: a part of a language allows nothing that the language doesn't.
"""

from collections.abc import Iterator
from typing import Final

from antiphon_server.constraints.languages import charsets
from antiphon_server.constraints.languages.charsets import CharSet
from antiphon_server.constraints.languages.terms import (
    ANY_CHAR,
    ANY_TEXT,
    Kind,
    Term,
    literal,
    of_length,
    one_of,
    repeat,
    sequence,
)

_MARK_POINT: Final = 0xE000
_MARK: Final = literal(chr(_MARK_POINT))

_Bounds = tuple[int, int | None]
_ANY_LENGTH: Final[_Bounds] = (0, None)


def open_parts(term: Term) -> Iterator[Term]:
    """Yields parts of a language in which any text may follow for a while; all are plain."""
    if term.kind in (Kind.BOTH, Kind.COMPLEMENT):
        parts = term.parts if term.kind is Kind.BOTH else (term,)
        yield from _open_conjunction(parts)
        return
    for option in term.parts if term.kind is Kind.CHOICE else (term,):
        yield from _open_search(option)
        yield from _open_runs(option, _ANY_LENGTH)


def _open_conjunction(parts: tuple[Term, ...]) -> Iterator[Term]:
    lengths = [part for part in parts if part.kind is Kind.REPEAT and part.parts[0] == ANY_CHAR]
    excluded = [part.parts[0] for part in parts if part.kind is Kind.COMPLEMENT]
    others = [part for part in parts if part not in lengths and part.kind is not Kind.COMPLEMENT]
    if len(lengths) > 1:
        return
    low, high = (lengths[0].low, lengths[0].high) if lengths else _ANY_LENGTH
    if not others and any(map(_repeats, excluded)) and all(map(_lacks_mark, excluded)):
        # The library looks through what is excluded where that is short texts, but not here.
        yield sequence(of_length(max(low - 1, 0), _less(high, 1)), _MARK)
    if len(others) == 1 and not excluded:
        (other,) = others
        for option in other.parts if other.kind is Kind.CHOICE else (other,):
            yield from _open_runs(option, (low, high))


def _open_search(option: Term) -> Iterator[Term]:
    """Where a text is searched for, and its beginning has just been, any text may still follow."""
    if option.kind is not Kind.SEQUENCE:
        return
    for index in (0, 1):
        before, after = option.parts[:index], option.parts[index:]
        if before in ((), (ANY_CHAR,)) and after[:1] == (ANY_TEXT,):
            yield sequence(ANY_TEXT, _MARK, *after[1:])
            return


def _open_runs(option: Term, bounds: _Bounds) -> Iterator[Term]:
    """So many words with blanks between them: before there are as many, any text may follow."""
    runs = _runs(option)
    low, high = bounds
    if runs is None or low > 2:
        return
    chars, max_gaps = runs
    # Each gap takes a character, and one more behind it.
    most = None if max_gaps is None else 2 * max_gaps - 1
    if high is not None:
        most = high - 2 if most is None else min(most, high - 2)
    # The first word, where no blank may stand in front of it.
    yield sequence(repeat(one_of(chars), max(low - 1, 0), _less(high, 1)), _MARK)
    if most is None or most > 0:
        yield sequence(one_of(chars), of_length(0, most), _MARK)


def _runs(option: Term) -> tuple[CharSet, int | None] | None:
    """Returns what words are made of where there may be so many gaps between them, of all else."""
    if option.kind is not Kind.SEQUENCE or len(option.parts) != 2:
        return None
    many, run = option.parts
    if run.kind is Kind.REPEAT and run.parts[0].kind is Kind.SEQUENCE:
        many, run = run, many
    if many.kind is not Kind.REPEAT or many.low > 0 or many.parts[0].kind is not Kind.SEQUENCE:
        return None
    chars = _run_chars(run)
    pair = [_run_chars(part) for part in many.parts[0].parts]
    gaps = [each for each in pair if each != chars]
    if chars is None or len(pair) != 2 or len(gaps) != 1 or gaps[0] is None:
        return None
    if charsets.union(chars, gaps[0]) != charsets.ALL or not charsets.contains(chars, _MARK_POINT):
        return None
    in_order = pair == ([chars, gaps[0]] if many is option.parts[0] else [gaps[0], chars])
    return (chars, many.high) if in_order else None


def _run_chars(part: Term) -> CharSet | None:
    """Returns what characters a run of one or more is made of; None: it is none."""
    is_run = part.kind is Kind.REPEAT and (part.low, part.high) == (1, None)
    return part.parts[0].chars if is_run and part.parts[0].kind is Kind.CHARS else None


def _repeats(term: Term) -> bool:
    return term.kind is Kind.REPEAT or any(map(_repeats, term.parts))


def _lacks_mark(term: Term) -> bool:
    """Whether surely no text of a language has the mark."""
    match term.kind:
        case Kind.CHARS:
            return not charsets.contains(term.chars, _MARK_POINT)
        case Kind.TEXT:
            return chr(_MARK_POINT) not in term.text
        case Kind.BOTH:
            return any(map(_lacks_mark, term.parts))
        case Kind.COMPLEMENT:
            return False
        case _:
            return all(map(_lacks_mark, term.parts))


def _less(high: int | None, by: int) -> int | None:
    return None if high is None else high - by
