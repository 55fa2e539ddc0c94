"""Proves that a terminal ends where it should.

The library takes the longest text of all terminals that may stand at a place. So where a way's text
ends and its value begins, no terminal may go on with a character that the value begins with; and a
text that is cut off without a value must have no terminal that goes on at all. A number must not be
followed by what could be more of it.

Where texts belong to several ways, what is behind all of them may follow at once. So it is looked
at sets of parts; they may be larger than what really comes together, and never smaller.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from antiphon_server.constraints.json_schema.lark_rules import LarkRules
from antiphon_server.constraints.languages.derivatives import (
    derivative,
    is_empty,
    matches,
    representatives,
    short_text,
)
from antiphon_server.constraints.languages.terms import (
    EMPTY,
    NOTHING,
    Kind,
    Term,
    both,
    choice,
    repeat,
    sequence,
)
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from antiphon_server.constraints.structural_tags.parts import Part, ValueSource
from antiphon_server.constraints.structural_tags.prefixes import Taker, Way

MAX_STATES: Final = 6000
"""Places within terminals that are looked at, of a tag together."""
_MAX_LOOK: Final = 100
"""How far it is looked whether anything is left of a language; the library must see it, too."""
_SHORT_REPEAT: Final = 16
_NUMBER_CHARACTERS: Final = "+-.0123456789Ee"

_Residues = tuple[tuple[int, Term], ...]
"""What is left of languages, by their index; those of which nothing is left are not there."""


class Boundaries:
    """Looks at all parts that a part leads to."""

    def __init__(
        self,
        taker: Taker,
        values: Mapping[ValueSource, LarkRules],
        paths: Mapping[ValueSource, str],
        *,
        counts: bool,
    ) -> None:
        """Takes the rules of all values and a path of each.

        Without `counts` long repeats are taken as any number, which takes far fewer steps. What is
        proven for more texts holds for these; what isn't may hold all the same.
        """
        self._taker = taker
        self._values = values
        self._paths = paths
        self._counts = counts
        self._dead: dict[Term, bool] = {}
        self._with_text: dict[Term, bool] = {}
        self._states_left = MAX_STATES

    def check(self, start: Part) -> None:
        """Checks that every terminal of a part, and of all that follows, ends where it should.

        Raises:
            UnsupportedConstraintError: one can't be told from what follows; names a value's path.
            ConstraintTooComplexError: that is too much to find out.
        """
        waiting = [frozenset({start})]
        seen = set(waiting)
        while waiting:
            for behind in self._check_together(waiting.pop()):
                if behind not in seen:
                    seen.add(behind)
                    waiting.append(behind)

    def _check_together(self, parts: frozenset[Part]) -> Iterator[frozenset[Part]]:
        """Checks parts of which any may come next; yields those that may be next behind them."""
        taken = [self._taker.take(part) for part in parts]
        ways = list(dict.fromkeys(way for each in taken for way in each.ways))
        languages = dict.fromkeys([each.whole for each in taken] + [way.before for way in ways])
        languages.pop(NOTHING, None)
        by_index: dict[int, list[Way]] = {}
        indices = {language: index for index, language in enumerate(languages)}
        for way in ways:
            by_index.setdefault(indices[way.before], []).append(way)
        together: dict[Way, dict[Way, None]] = {way: {} for way in ways}
        walked = tuple(languages) if self._counts else tuple(map(_uncounted, languages))
        for residues in self._walk(walked) if ways else ():
            ended = [
                way
                for index, residue in residues
                if residue.nullable
                for way in by_index.get(index, ())
            ]
            for way in ended:
                self._check_end(way, residues)
                together[way].update(dict.fromkeys(ended))
        for way, others in together.items():
            self._check_alike(way, others)
            yield frozenset(other.behind for other in others)

    def _walk(self, languages: Sequence[Term]) -> Iterator[_Residues]:
        """Yields what is left of the languages' texts behind every text that leaves something."""
        waiting: list[_Residues] = [tuple(enumerate(languages))]
        seen = set(waiting)
        while waiting:
            residues = waiting.pop()
            yield residues
            for code_point in representatives(Term(Kind.BOTH, tuple(each for _, each in residues))):
                after = tuple(
                    (index, left)
                    for index, residue in residues
                    if (left := self._after(residue, code_point)) is not NOTHING
                )
                if after in seen or not after:
                    continue
                seen.add(after)
                waiting.append(after)
                self._states_left -= 1
                if self._states_left < 0:
                    raise ConstraintTooComplexError(
                        f"it takes more than {MAX_STATES} steps to find out where the structural "
                        "tag's texts end; use shorter texts, fewer tags or simpler expressions",
                        limit=str(MAX_STATES),
                    )

    def _after(self, residue: Term, code_point: int) -> Term:
        after = derivative(residue, code_point)
        return NOTHING if self._is_dead(after) else after

    def _is_dead(self, term: Term) -> bool:
        if term.nullable:
            return False
        if term not in self._dead:
            # Most have a text that is quickly found; to look everywhere takes long.
            dead = not self._has_text(term) and is_empty(term, max_states=_MAX_LOOK)
            self._dead[term] = bool(dead)
        return self._dead[term]

    def _has_text(self, term: Term) -> bool:
        """Returns whether a text is quickly found."""
        if term.nullable or term.is_plain:
            return term != NOTHING
        if term not in self._with_text:
            self._with_text[term] = self._find_text(term)
        return self._with_text[term]

    def _find_text(self, term: Term) -> bool:
        match term.kind:
            case Kind.CHOICE:
                return any(map(self._has_text, term.parts))
            case Kind.SEQUENCE | Kind.REPEAT:
                return all(map(self._has_text, term.parts))
            case Kind.BOTH:
                texts = (short_text(each, _MAX_LOOK) for each in term.parts if each.is_plain)
                return any(text is not None and matches(term, text) for text in texts)
        return False

    def _check_end(self, way: Way, residues: _Residues) -> None:
        """Checks that nothing goes on where a way's text has ended."""
        if way.value is None:
            if any(self._goes_on(residue) for _, residue in residues):
                self._refuse(way, "the text in front of it may end in several places")
            return
        for first in self._values[way.value].firsts:
            if any(self._after(residue, ord(first)) is not NOTHING for _, residue in residues):
                self._refuse(way, f"what may stand in front of it can go on with {first!r}, too")

    def _goes_on(self, residue: Term) -> bool:
        if residue in (NOTHING, EMPTY):
            return False
        return any(
            self._after(residue, code_point) != NOTHING for code_point in representatives(residue)
        )

    def _check_alike(self, way: Way, others: Mapping[Way, None]) -> None:
        """Checks ways that have a text in common."""
        if any((other.value is None) != (way.value is None) for other in others):
            self._refuse(way, "the text in front of it may end in several places")
        if way.value is None:
            return
        rules = self._values[way.value]
        if any(self._writes_numbers_otherwise(rules, other) for other in others):
            self._refuse(way, "its numbers can't be told from those of another schema there")
        if rules.may_be_number and any(self._may_be_digits(other.behind) for other in others):
            self._refuse(way, "it may be a number, and what follows may be more of it")

    def _writes_numbers_otherwise(self, rules: LarkRules, other: Way) -> bool:
        assert other.value is not None
        return self._values[other.value].by_character != rules.by_character

    def _may_be_digits(self, part: Part) -> bool:
        """Returns whether a text of the part may begin with what numbers have in them."""
        taken = self._taker.take(part)
        firsts = "".join(
            self._values[way.value].firsts
            for way in taken.ways
            if way.value is not None and way.before.nullable
        )
        languages = [taken.whole, *(way.before for way in taken.ways)]
        return bool(set(firsts) & set(_NUMBER_CHARACTERS)) or any(
            self._after(language, ord(character)) != NOTHING
            for language in languages
            for character in _NUMBER_CHARACTERS
        )

    def _refuse(self, way: Way, message: str) -> None:
        source = way.value or self._next_value(way.behind)
        raise UnsupportedConstraintError(
            self._paths[source],
            f"it can't be told where this begins or ends: {message}; put a fixed text between",
        )

    def _next_value(self, part: Part) -> ValueSource:
        """Returns a value that a part leads to."""
        seen = [part]
        for each in seen:
            for way in self._taker.take(each).ways:
                if way.value is not None:
                    return way.value
                seen.append(way.behind)
        raise AssertionError("a part without a value was cut off")


def _uncounted(term: Term) -> Term:
    """Returns a language that has the term's texts and perhaps more."""
    parts = [_uncounted(part) for part in term.parts]
    match term.kind:
        case Kind.SEQUENCE:
            wider = sequence(*parts)
        case Kind.CHOICE:
            wider = choice(*parts)
        case Kind.BOTH:
            wider = both(*parts)
        case Kind.REPEAT if max(term.low, term.high or 0) > _SHORT_REPEAT:
            wider = repeat(parts[0], min(term.low, 1), None)
        case Kind.REPEAT:
            wider = repeat(parts[0], term.low, term.high)
        case _:
            wider = term  # A complement, too: with more texts inside it would have fewer.
    return wider
