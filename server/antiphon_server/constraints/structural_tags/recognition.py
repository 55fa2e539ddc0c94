"""Whether a finished output is as a structural tag asks, found by trying all ways to read it.

Every format is asked where its texts may end that begin at a place. This knows nothing of grammars
and languages: it is the other reading that outputs are held against.
"""

import json
import re
from collections.abc import Callable, Iterable, Set
from typing import Final, assert_never

from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.pattern_spelling import compile_pattern
from antiphon_server.constraints.structural_tags.document import read_tag
from antiphon_server.constraints.structural_tags.formats import (
    Dispatch,
    Expression,
    FixedText,
    Format,
    FreeText,
    InARow,
    JsonValue,
    OneOf,
    Repeated,
    Separated,
    Tag,
)

MAX_STEPS: Final = 2_000_000
"""Places and characters that are looked at for one output."""
_READ_BEFORE: Final = PlanLimits(max_depth=1 << 16)
"""The document was let in with the limits that hold; here it is only read again."""

FindInValue = Callable[[str, str, int | None], str | None]
"""Tells what is wrong with a JSON text: of a schema, the text, and the white space in a row that it
may have (None: as elsewhere). Empty: nothing; None: it can't say."""


class _UnsureError(Exception):
    """It can't be told, or would take too long."""


def find_fault_in_tag(document: str, text: str, find_in_value: FindInValue) -> str | None:
    """Returns what is wrong with an output; empty: nothing; None: it can't be told here.

    Args:
        document: The structural tag, which was let in.
        text: The output.
        find_in_value: Looks at the JSON in it.
    """
    recogniser = _Recogniser(text, find_in_value)
    try:
        is_whole = recogniser.has_whole(read_tag(document, _READ_BEFORE))
    except (_UnsureError, RecursionError):
        return None
    return "" if is_whole else "it is none of the texts that the tag allows"


class _Recogniser:
    def __init__(self, text: str, find_in_value: FindInValue) -> None:
        self._text = text
        self._find_in_value = find_in_value
        self._known: dict[tuple[int, int], Set[int]] = {}
        self._steps_left = MAX_STEPS
        self._decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_no_number)

    def has_whole(self, wanted: Format) -> bool:
        """Returns whether the whole text is one of a format's."""
        return len(self._text) in self._ends(wanted, {0})

    def _ends(self, wanted: Format, starts: Iterable[int]) -> Set[int]:
        """Returns where a format's texts end that begin at any of some places."""
        ends: set[int] = set()
        for start in starts:
            key = (id(wanted), start)
            if key not in self._known:
                self._known[key] = self._ends_from(wanted, start)
            found = self._known[key]
            self._spend(1 + len(found))
            ends |= found
        return ends

    def _ends_from(  # noqa: PLR0911 - one for each format
        self, wanted: Format, start: int
    ) -> Set[int]:
        match wanted:
            case FixedText():
                return self._behind_any((wanted.text,), {start})
            case FreeText():
                longest = len(self._text) if wanted.max_chars is None else wanted.max_chars
                last = min(start + longest, self._first_end(wanted.excludes, start) - 1)
                return set(range(start, min(last, len(self._text)) + 1))
            case Expression():
                return self._ends_of_matches(wanted, start)
            case JsonValue():
                return self._end_of_value(wanted, start)
            case InARow():
                return self._in_a_row(wanted.elements, start)
            case OneOf():
                return {end for each in wanted.elements for end in self._ends(each, {start})}
            case Repeated():
                return self._repeated(
                    lambda places: self._ends(wanted.content, places),
                    wanted.low,
                    wanted.high,
                    start,
                )
            case Tag():
                begun = self._behind_any((wanted.begin,), {start})
                return self._behind_any(wanted.ends, self._ends(wanted.content, begun))
            case Dispatch():
                return self._dispatched(wanted, start)
            case Separated():
                return self._separated(wanted, start)
            case _:
                assert_never(wanted)

    def _in_a_row(self, elements: Iterable[Format], start: int) -> Set[int]:
        places: Set[int] = {start}
        for each in elements:
            places = self._ends(each, places)
        return places

    def _repeated(
        self, once: Callable[[Set[int]], Set[int]], low: int, high: int | None, start: int
    ) -> Set[int]:
        places: Set[int] = {start}
        ends: set[int] = set()
        count = 0
        while places and (high is None or count <= high):
            self._spend(len(places))
            if count >= low:
                if places <= ends:
                    break
                ends |= places
            places = once(places)
            count += 1
        return ends

    def _dispatched(self, wanted: Dispatch, start: int) -> Set[int]:
        places: Set[int] = {start} if wanted.first is None else self._ends(wanted.first, {start})
        ends: set[int] = set()
        seen: set[int] = set()
        while places:
            behind: set[int] = set()
            for place in places - seen:
                seen.add(place)
                free, found = self._up_to_trigger(wanted, place)
                ends |= free
                self._spend(1 + len(free))
                for follows, trigger_end in found:
                    behind |= self._ends(follows, {trigger_end})
            if not wanted.loops:
                return ends | behind
            places = behind
        return ends

    def _up_to_trigger(
        self, wanted: Dispatch, start: int
    ) -> tuple[Set[int], list[tuple[Format, int]]]:
        """Returns where free text may end, and what must follow where it can't go on."""
        bound = self._first_end(wanted.excludes, start)
        at_trigger = self._first_end((trigger for trigger, _ in wanted.triggers), start)
        free = set(range(start, min(at_trigger, bound, len(self._text) + 1)))
        if at_trigger >= bound:
            return free, []
        reached = self._text[start:at_trigger]
        follows = [behind for trigger, behind in wanted.triggers if reached.endswith(trigger)]
        return free, [(each, at_trigger) for each in follows]

    def _separated(self, wanted: Separated, start: int) -> Set[int]:
        def one(places: Set[int]) -> Set[int]:
            return {end for each in wanted.elements for end in self._ends(each, places)}

        def another(places: Set[int]) -> Set[int]:
            return one(self._behind_any((wanted.separator,), places))

        first = one({start})
        ends = set(first) if wanted.low <= 1 else set()
        if wanted.low == 0:
            ends.add(start)
        if wanted.high is None:
            for place in first:
                ends |= self._repeated(another, 0, None, place)
        return ends

    def _behind_any(self, texts: Iterable[str], places: Set[int]) -> Set[int]:
        """Returns what is behind any of the texts at the places."""
        options = tuple(texts)
        self._spend(len(places) * len(options))
        return {
            place + len(option)
            for place in places
            for option in options
            if self._text.startswith(option, place)
        }

    def _first_end(self, texts: Iterable[str], start: int) -> int:
        """Returns where the first of any of the texts ends; far away where there is none."""
        found = [(self._text.find(text, start), len(text)) for text in texts]
        return min((at + size for at, size in found if at >= 0), default=len(self._text) + 2)

    def _ends_of_matches(self, wanted: Expression, start: int) -> Set[int]:
        try:
            expression = compile_pattern(wanted.pattern)
        except (ValueError, re.error) as error:
            raise _UnsureError from error
        ends = set()
        for end in range(start, len(self._text) + 1):
            self._spend(end - start)
            # Of a piece, since an edge of the text is one of the piece to an expression.
            if expression.fullmatch(self._text[start:end]):
                ends.add(end)
        return ends

    def _end_of_value(self, wanted: JsonValue, start: int) -> Set[int]:
        try:
            _, end = self._decoder.raw_decode(self._text, start)
        except ValueError:
            return set()
        self._spend(end - start)
        fault = self._find_in_value(wanted.schema, self._text[start:end], wanted.max_blank)
        if fault is None:
            raise _UnsureError
        return set() if fault else {end}

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _UnsureError


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number")
