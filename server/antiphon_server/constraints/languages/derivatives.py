"""Questions about languages, answered by taking characters off their texts (derivatives)."""

from collections import deque
from collections.abc import Iterator

from antiphon_server.constraints.languages import charsets
from antiphon_server.constraints.languages.charsets import CharSet
from antiphon_server.constraints.languages.terms import (
    EMPTY,
    NOTHING,
    Kind,
    Term,
    both,
    choice,
    complement,
    repeat,
    sequence,
)


def derivative(term: Term, code_point: int) -> Term:
    """Returns what may follow the character in texts of the language that begin with it."""
    match term.kind:
        case Kind.CHARS:
            return EMPTY if charsets.contains(term.chars, code_point) else NOTHING
        case Kind.SEQUENCE:
            return _of_sequence(term, code_point)
        case Kind.CHOICE:
            return choice(*(derivative(part, code_point) for part in term.parts))
        case Kind.BOTH:
            return both(*(derivative(part, code_point) for part in term.parts))
        case Kind.COMPLEMENT:
            return complement(derivative(term.parts[0], code_point))
        case Kind.REPEAT:
            high = None if term.high is None else term.high - 1
            rest = repeat(term.parts[0], max(term.low - 1, 0), high)
            return sequence(derivative(term.parts[0], code_point), rest)


def matches(term: Term, text: str) -> bool:
    """Says whether the text is in the language."""
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


def last_sets(term: Term) -> Iterator[CharSet]:
    """Yields sets that together have every character that a plain language's texts end with."""
    match term.kind:
        case Kind.CHARS:
            yield term.chars
        case Kind.SEQUENCE:
            for part in reversed(term.parts):
                yield from last_sets(part)
                if not part.nullable:
                    return
        case _:
            for part in term.parts:
                yield from last_sets(part)


def _of_sequence(term: Term, code_point: int) -> Term:
    options = []
    for index, part in enumerate(term.parts):
        options.append(sequence(derivative(part, code_point), *term.parts[index + 1 :]))
        if not part.nullable:
            break
    return choice(*options)


def _first_sets(term: Term) -> Iterator[CharSet]:
    match term.kind:
        case Kind.CHARS:
            yield term.chars
        case Kind.SEQUENCE:
            for part in term.parts:
                yield from _first_sets(part)
                if not part.nullable:
                    return
        case _:
            for part in term.parts:
                yield from _first_sets(part)


def _finite(term: Term, limit: int) -> set[str] | None:
    match term.kind:
        case Kind.CHARS:
            return _finite_chars(term.chars, limit)
        case Kind.SEQUENCE:
            return _finite_sequence(term.parts, limit)
        case Kind.CHOICE:
            return _finite_choice(term.parts, limit)
        case Kind.REPEAT if term.high is not None and term.high <= limit:
            part = term.parts[0]
            counts = range(term.low, term.high + 1)
            return _finite_choice(tuple(sequence(*[part] * n) for n in counts), limit)
        case Kind.BOTH:
            return _finite_both(term, limit)
        case _:
            return None


def _finite_chars(chars: CharSet, limit: int) -> set[str] | None:
    if charsets.size(chars) > limit:
        return None
    return {chr(point) for low, high in chars for point in range(low, high + 1)}


def _finite_sequence(parts: tuple[Term, ...], limit: int) -> set[str] | None:
    texts = {""}
    for part in parts:
        tails = _finite(part, limit)
        if tails is None or len(texts) * len(tails) > limit:
            return None
        texts = {head + tail for head in texts for tail in tails}
    return texts


def _finite_both(term: Term, limit: int) -> set[str] | None:
    for part in term.parts:
        texts = _finite(part, limit)
        if texts is not None:
            return {text for text in texts if matches(term, text)}
    return None


def _finite_choice(parts: tuple[Term, ...], limit: int) -> set[str] | None:
    texts: set[str] = set()
    for part in parts:
        more = _finite(part, limit)
        if more is None or len(texts) + len(more) > limit:
            return None
        texts |= more
    return texts
