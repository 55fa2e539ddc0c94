"""Questions about languages, answered by taking characters off their texts (derivatives)."""

import operator
from collections import deque
from collections.abc import Iterator

from antiphon_server.constraints.languages import charsets
from antiphon_server.constraints.languages.charsets import CharSet
from antiphon_server.constraints.languages.terms import (
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Kind,
    Term,
    both,
    choice,
    complement,
    literal,
    repeat,
    sequence,
)


def derivative(term: Term, code_point: int) -> Term:
    """Returns what may follow the character in texts of the language that begin with it.

    Where that is the language itself, the same object: it knows its derivatives.
    """
    known = term.derivatives.get(code_point)
    if known is None:
        known = term.derivatives[code_point] = _derivative(term, code_point)
    return known


def _derivative(term: Term, code_point: int) -> Term:
    after = NOTHING
    match term.kind:
        case Kind.CHARS if charsets.contains(term.chars, code_point):
            after = EMPTY
        case Kind.TEXT if ord(term.text[0]) == code_point:
            after = literal(term.text[1:])
        case Kind.SEQUENCE:
            after = _of_sequence(term, code_point)
        case Kind.CHOICE | Kind.BOTH | Kind.COMPLEMENT:
            after = _of_parts(term, code_point)
        case Kind.REPEAT:
            after = sequence(derivative(term.parts[0], code_point), _one_less(term))
    return after


def matches(term: Term, text: str) -> bool:
    """Says whether the text is in the language."""
    if term == ANY_TEXT:
        return True
    for character in text:
        term = derivative(term, ord(character))
        if term == NOTHING:
            return False
    return term.nullable


def is_empty(term: Term, *, max_states: int) -> bool | None:
    """Says whether the language has no text; None: too much to find out."""
    if term.is_plain:
        return term == NOTHING
    seen = {term}
    waiting = deque([term])
    while waiting:
        state = waiting.popleft()
        if state.nullable or (state.is_plain and state != NOTHING):
            return False
        for code_point in representatives(state):
            after = derivative(state, code_point)
            if after not in seen:
                seen.add(after)
                waiting.append(after)
        if len(seen) > max_states:
            return None
    return True


def short_text(term: Term, limit: int) -> str | None:
    """Returns a text of a plain language; None: it has none, or none that is this short is seen."""
    text: str | None = None
    match term.kind:
        case Kind.CHARS:
            text = chr(term.chars[0][0])
        case Kind.TEXT:
            text = term.text
        case Kind.SEQUENCE:
            texts = [short_text(part, limit) for part in term.parts]
            known = [each for each in texts if each is not None]
            text = "".join(known) if len(known) == len(texts) else None
        case Kind.CHOICE:
            options = (short_text(part, limit) for part in term.parts)
            text = min((each for each in options if each is not None), key=len, default=None)
        case Kind.REPEAT if term.low <= limit:
            once = short_text(term.parts[0], limit) if term.low else ""
            text = None if once is None else once * term.low
    return None if text is None or len(text) > limit else text


def finite_texts(term: Term, limit: int) -> frozenset[str] | None:
    """Returns the language's texts; None: it has, or may have, more than `limit` of them."""
    texts = _finite(term, limit)
    return None if texts is None or len(texts) > limit else frozenset(texts)


def representatives(term: Term) -> Iterator[int]:
    """Yields a character of every set of characters after which the language goes on alike."""
    firsts = set(_first_sets(term))
    borders = {0}
    for chars in firsts:
        for low, high in chars:
            borders.add(low)
            borders.add(high + 1)
    known = set()
    for code_point in sorted(borders):
        if not charsets.contains(charsets.ALL, code_point):
            continue
        signature = tuple(charsets.contains(chars, code_point) for chars in firsts)
        if signature not in known:
            known.add(signature)
            yield code_point


def first_chars(term: Term) -> CharSet:
    """Returns characters that have all with which texts of the language begin among them."""
    return charsets.union(*_first_sets(term))


def last_sets(term: Term) -> Iterator[CharSet]:
    """Yields sets that together have every character that a plain language's texts end with."""
    match term.kind:
        case Kind.CHARS:
            yield term.chars
        case Kind.TEXT:
            yield charsets.charset_of(term.text[-1])
        case Kind.SEQUENCE:
            for part in reversed(term.parts):
                yield from last_sets(part)
                if not part.nullable:
                    return
        case _:
            for part in term.parts:
                yield from last_sets(part)


def _of_parts(term: Term, code_point: int) -> Term:
    parts = [derivative(part, code_point) for part in term.parts]
    if all(map(operator.is_, parts, term.parts)):
        return term
    if term.kind is Kind.COMPLEMENT:
        return complement(parts[0])
    return choice(*parts) if term.kind is Kind.CHOICE else both(*parts)


def _one_less(term: Term) -> Term:
    """Returns what of a repetition follows one of its parts."""
    if term.low == 0 and term.high is None:
        return term
    high = None if term.high is None else term.high - 1
    return repeat(term.parts[0], max(term.low - 1, 0), high)


def _of_sequence(term: Term, code_point: int) -> Term:
    options = []
    for index, part in enumerate(term.parts):
        after = derivative(part, code_point)
        unchanged = index == 0 and after is part
        options.append(term if unchanged else sequence(after, *term.parts[index + 1 :]))
        if not part.nullable:
            break
    return choice(*options)


def _first_sets(term: Term) -> Iterator[CharSet]:
    match term.kind:
        case Kind.CHARS:
            yield term.chars
        case Kind.TEXT:
            yield charsets.charset_of(term.text[0])
        case Kind.SEQUENCE:
            for part in term.parts:
                yield from _first_sets(part)
                if not part.nullable:
                    return
        case _:
            for part in term.parts:
                yield from _first_sets(part)


def _finite(term: Term, limit: int) -> set[str] | None:
    found: set[str] | None = None
    match term.kind:
        case Kind.CHARS if charsets.size(term.chars) <= limit:
            found = {chr(point) for low, high in term.chars for point in range(low, high + 1)}
        case Kind.TEXT:
            found = {term.text}
        case Kind.SEQUENCE:
            found = _finite_sequence(term.parts, limit)
        case Kind.CHOICE:
            found = _finite_choice(term.parts, limit)
        case Kind.REPEAT if term.high is not None and term.high <= limit:
            found = _finite_repeat(term.parts[0], term.low, term.high, limit)
        case Kind.BOTH:
            found = _finite_both(term, limit)
    return found


def _finite_both(term: Term, limit: int) -> set[str] | None:
    for part in term.parts:
        texts = _finite(part, limit)
        if texts is not None:
            return {text for text in texts if matches(term, text)}
    return None


def _finite_sequence(parts: tuple[Term, ...], limit: int) -> set[str] | None:
    texts = {""}
    for part in parts:
        tails = _finite(part, limit)
        if tails is None or len(texts) * len(tails) > limit:
            return None
        texts = {head + tail for head in texts for tail in tails}
    return texts


def _finite_repeat(part: Term, low: int, high: int, limit: int) -> set[str] | None:
    units = _finite(part, limit)
    if units is None:
        return None
    texts: set[str] = set()
    longest = {""}
    for count in range(high + 1):
        if count >= low:
            texts |= longest
        if len(longest) * len(units) + len(texts) > limit:
            return None if count < high else texts
        longest = {head + unit for head in longest for unit in units}
    return texts


def _finite_choice(parts: tuple[Term, ...], limit: int) -> set[str] | None:
    texts: set[str] = set()
    for part in parts:
        more = _finite(part, limit)
        if more is None or len(texts) + len(more) > limit:
            return None
        texts |= more
    return texts
