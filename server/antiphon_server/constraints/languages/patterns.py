"""From a regular expression to the language of the texts that it matches.

Assertions look at what follows or precedes, so an expression is translated together with all that
follows it: an assertion becomes an intersection with that, and `$` leaves nothing of it.
"""

import enum
from functools import lru_cache

from antiphon_server.constraints.languages import charsets, terms
from antiphon_server.constraints.languages.charsets import CharSet
from antiphon_server.constraints.languages.derivatives import last_sets
from antiphon_server.constraints.languages.pattern_syntax import (
    ECMA_262,
    EVERY_READER,
    Edge,
    Look,
    Options,
    PatternError,
    Readings,
    Row,
    Syntax,
    parse_pattern,
)
from antiphon_server.constraints.languages.terms import ANY_TEXT, EMPTY, NOTHING, Term

_NOT_WORD = charsets.negation(charsets.WORD)


class _Before(enum.Enum):
    """What is in front of a place."""

    START = "start"
    WORD = "word"
    OTHER = "other"
    UNKNOWN = "unknown"
    """Some character, or none at all."""
    CHARACTER = "character"
    """Some character."""


@lru_cache(maxsize=256)
def searched(pattern: str, *, readings: Readings = ECMA_262) -> Term:
    """Returns the texts in which the expression matches somewhere, as JSON Schema's `pattern` does.

    Args:
        pattern: The expression.
        readings: What blanks are; a text is one in which it matches for each of them.

    Raises:
        PatternError: it can't be enforced, or is no regular expression.
    """
    syntax = parse_pattern(pattern, readings=readings)
    if isinstance(syntax, Term):
        return terms.containing(syntax)
    at_start = _translate(syntax, ANY_TEXT, _Before.START)
    if not _has_word_edge(syntax):
        later = terms.sequence(
            terms.ANY_CHAR, ANY_TEXT, _translate(syntax, ANY_TEXT, _Before.CHARACTER)
        )
        return terms.choice(at_start, later)
    behind_word = _translate(syntax, ANY_TEXT, _Before.WORD)
    behind_other = _translate(syntax, ANY_TEXT, _Before.OTHER)
    return terms.choice(
        at_start,
        terms.sequence(ANY_TEXT, terms.one_of(charsets.WORD), behind_word),
        terms.sequence(ANY_TEXT, terms.one_of(_NOT_WORD), behind_other),
    )


def matched(pattern: str) -> Term:
    """Returns the texts that the expression matches as a whole, for every reader.

    Raises:
        PatternError: it can't be enforced, or is no regular expression.
    """
    syntax = parse_pattern(pattern, readings=EVERY_READER)
    return _translate(syntax, EMPTY, _Before.START)


def _translate(syntax: Syntax, rest: Term, before: _Before) -> Term:
    """Returns the texts that begin with a match and go on with a text of `rest`."""
    match syntax:
        case Term():
            return terms.sequence(syntax, rest)
        case Row():
            return _translate_row(syntax.parts, rest, before)
        case Options():
            return terms.choice(*(_translate(part, rest, before) for part in syntax.parts))
        case Look():
            ahead = _translate(syntax.inner, ANY_TEXT, before)
            return terms.both(terms.complement(ahead) if syntax.negated else ahead, rest)
        case Edge():
            return _translate_edge(syntax, rest, before)


def _translate_row(parts: tuple[Syntax, ...], rest: Term, before: _Before) -> Term:
    if not parts:
        return rest
    tail = _translate_row(parts[1:], rest, _behind(parts[0], before))
    return _translate(parts[0], tail, before)


def _translate_edge(edge: Edge, rest: Term, before: _Before) -> Term:
    match edge.sign:
        case "$":
            return EMPTY if rest.nullable else NOTHING
        case "^":
            if before is _Before.UNKNOWN:
                raise PatternError(edge.position, "^ after what may be empty can't be enforced")
            return rest if before is _Before.START else NOTHING
        case _:
            return _translate_word_edge(edge, rest, before)


def _translate_word_edge(edge: Edge, rest: Term, before: _Before) -> Term:
    if before in (_Before.UNKNOWN, _Before.CHARACTER):
        message = f"\\{edge.sign} after what may end in a word or not can't be enforced"
        raise PatternError(edge.position, message)
    word_follows = terms.sequence(terms.one_of(charsets.WORD), ANY_TEXT)
    wants_word = (before is not _Before.WORD) == (edge.sign == "b")
    return terms.both(word_follows if wants_word else terms.complement(word_follows), rest)


def _behind(syntax: Syntax, before: _Before) -> _Before:
    """What is in front of the place behind a part."""
    match syntax:
        case Look() | Edge():
            return before
        case Term():
            return before if syntax == EMPTY else _behind_term(syntax, before)
        case Row():
            for part in syntax.parts:
                before = _behind(part, before)
            return before
        case Options():
            found = {_behind(part, before) for part in syntax.parts}
            if len(found) == 1:
                return found.pop()
            if found <= {_Before.WORD, _Before.OTHER, _Before.CHARACTER}:
                return _Before.CHARACTER
            return _Before.UNKNOWN


def _behind_term(term: Term, before: _Before) -> _Before:
    sets = list(last_sets(term))
    behind = _Before.CHARACTER
    if all(_within(chars, charsets.WORD) for chars in sets):
        behind = _Before.WORD
    elif all(_within(chars, _NOT_WORD) for chars in sets):
        behind = _Before.OTHER
    if not term.nullable or before is behind:
        return behind
    return _Before.UNKNOWN if before in (_Before.START, _Before.UNKNOWN) else _Before.CHARACTER


def _within(chars: CharSet, other: CharSet) -> bool:
    return charsets.intersection(chars, other) == chars


def _has_word_edge(syntax: Syntax) -> bool:
    match syntax:
        case Edge():
            return syntax.sign in "bB"
        case Look():
            return _has_word_edge(syntax.inner)
        case Row() | Options():
            return any(_has_word_edge(part) for part in syntax.parts)
        case Term():
            return False
