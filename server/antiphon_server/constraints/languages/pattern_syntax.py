"""Regular expressions as ECMA-262 has them (with `u`), parsed; what isn't regular is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Final, NoReturn, TypeAlias

from antiphon_server.constraints.languages import charsets, terms
from antiphon_server.constraints.languages.charsets import CharSet
from antiphon_server.constraints.languages.terms import Term

Readings: TypeAlias = tuple[CharSet, ...]
"""What readers of an expression take for blanks, where they differ."""
ECMA_262: Final[Readings] = (charsets.SPACE,)
EVERY_READER: Final[Readings] = (charsets.SPACE, charsets.WHITE_SPACE)

MAX_REPEAT: Final = 100_000
_MAX_NESTING: Final = 60


class PatternError(Exception):
    """A regular expression that can't be enforced, or is none.

    Attributes:
        position: Where, in characters from its beginning.
        message: What is wrong there.
    """

    def __init__(self, position: int, message: str) -> None:
        super().__init__(f"position {position}: {message}")
        self.position = position
        self.message = message


@dataclass(frozen=True, slots=True)
class Edge:
    """`^`, `$`, or an edge of a word: matches no character, but a place."""

    sign: str
    position: int


@dataclass(frozen=True, slots=True)
class Look:
    """`(?=...)` or `(?!...)`."""

    inner: "Syntax"
    negated: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Parts in a row."""

    parts: "tuple[Syntax, ...]"


@dataclass(frozen=True, slots=True)
class Options:
    """One part of several."""

    parts: "tuple[Syntax, ...]"


Syntax: TypeAlias = Term | Edge | Look | Row | Options

_CLASSES: Final = {"d": charsets.DIGIT, "w": charsets.WORD}
_CONTROLS: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_CATEGORIES: Final = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "Punctuation": "P", "Symbol": "S", "Separator": "Z", "Other": "C",
}  # fmt: skip
_SHORT_CATEGORIES: Final = frozenset(
    {
        "L",
        "Ll",
        "Lu",
        "Lt",
        "Lm",
        "Lo",
        "M",
        "Mn",
        "Mc",
        "Me",
        "N",
        "Nd",
        "Nl",
        "No",
        "P",
        "Pc",
        "Pd",
        "Ps",
        "Pe",
        "Pi",
        "Pf",
        "Po",
        "S",
        "Sm",
        "Sc",
        "Sk",
        "So",
        "Z",
        "Zs",
        "Zl",
        "Zp",
        "C",
        "Cc",
        "Cf",
    }
)


def parse_pattern(text: str, *, readings: Readings = ECMA_262) -> Syntax:
    """Returns the expression's parts; without assertions in it, a Term.

    Args:
        text: The expression.
        readings: What blanks are; the expression matches what it does for each of them.

    Raises:
        PatternError: it isn't one, or has what no regular language has.
    """
    parser = _Parser(text, readings)
    syntax = parser.options()
    if parser.position < len(text):
        parser.refuse("there is a ) without its (")
    return syntax


class _Parser:
    def __init__(self, text: str, readings: Readings) -> None:
        self.text = text
        self.position = 0
        self._readings = readings
        self._excludes = False
        """Whether what is matched is excluded: by each reading, then."""
        self._nesting = 0

    def refuse(self, message: str, *, position: int | None = None) -> NoReturn:
        raise PatternError(self.position if position is None else position, message)

    def options(self) -> Syntax:
        parts = [self._row()]
        while self._take("|"):
            parts.append(self._row())
        if all(isinstance(part, Term) for part in parts):
            return terms.choice(*(part for part in parts if isinstance(part, Term)))
        return Options(tuple(parts))

    def _row(self) -> Syntax:
        parts: list[Syntax] = []
        while self.position < len(self.text) and self.text[self.position] not in "|)":
            part = self._quantified()
            before = parts[-1] if parts else None
            if isinstance(part, Term) and isinstance(before, Term):
                parts[-1] = terms.sequence(before, part)
            else:
                parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return Row(tuple(parts)) if parts else terms.EMPTY

    def _quantified(self) -> Syntax:
        start = self.position
        atom = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return atom
        self._take("?")
        if self.position < len(self.text) and self.text[self.position] in "*+?":
            self.refuse("this quantifier follows another")
        low, high = bounds
        if isinstance(atom, Term):
            return terms.repeat(atom, low, high)
        if (low, high) == (0, 1):
            return Options((terms.EMPTY, atom))
        if (low, high) == (1, 1):
            return atom
        self.refuse("an assertion inside a repetition can't be enforced", position=start)

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._next() != "{":
            return None
        end = self.text.find("}", self.position)
        low, comma, high = self.text[self.position + 1 : end].partition(",")
        if end < 0 or not _is_count(low) or not (high == "" or _is_count(high)):
            if low == "" and _is_count(high):
                self.refuse("{,n} means different things to different readers; write {0,n}")
            return None
        bounds = int(low), (int(high) if high else None if comma else int(low))
        if max(bounds[0], bounds[1] or 0) > MAX_REPEAT:
            self.refuse(f"more than {MAX_REPEAT} repetitions")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            self.refuse("the upper bound is below the lower one")
        self.position = end + 1
        return bounds

    def _atom(self) -> Syntax:
        start = self.position
        character = self.text[start]
        if character in "*+?":
            self.refuse(f"there is nothing for {character} to repeat")
        self.position += 1
        match character:
            case "^" | "$":
                return Edge(character, start)
            case ".":
                return terms.one_of(charsets.negation(charsets.LINE_END))
            case "[":
                return terms.one_of(self._class())
            case "(":
                return self._group(start)
            case "\\":
                return self._escape(start)
            case _:
                return terms.literal(character)

    def _group(self, start: int) -> Syntax:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            self.refuse(f"groups nest more than {_MAX_NESTING} levels deep")
        look = self._group_kind(start)
        outside = self._excludes
        self._excludes = outside or look == "!"
        inner = self.options()
        self._excludes = outside
        if not self._take(")"):
            self.refuse("this ( has no )", position=start)
        self._nesting -= 1
        return inner if look is None else Look(inner, negated=look == "!")

    def _group_kind(self, start: int) -> str | None:
        """Returns the sign of a look-ahead; None: the group only holds together."""
        if not self._take("?"):
            return None
        if self._take(":"):
            return None
        for sign in "=!":
            if self._take(sign):
                return sign
        if self._take("<="):
            self.refuse("look-behind can't be enforced", position=start)
        if self._take("<!"):
            self.refuse("look-behind can't be enforced", position=start)
        named = self._take("<") or self._take("P<")
        end = self.text.find(">", self.position)
        if not named or end < 0 or not self.text[self.position : end].isidentifier():
            self.refuse("this kind of group isn't known", position=start)
        self.position = end + 1
        return None

    def _escape(self, start: int) -> Syntax:
        character = self._next()
        if character in ("b", "B"):
            self.position += 1
            return Edge(character, start)
        if character.isdigit() and character != "0":
            self.refuse("a reference back to a group can't be enforced", position=start)
        if character == "k":
            self.refuse("a reference back to a group can't be enforced", position=start)
        first = self.position

        def read(space: CharSet) -> CharSet:
            self.position = first
            return self._escaped_set(start, space)

        return terms.one_of(self._agreed(read))

    def _agreed(self, read: Callable[[CharSet], CharSet]) -> CharSet:
        """Returns what all readings have in common, or, where it is excluded, what any has."""
        combine = charsets.union if self._excludes else charsets.intersection
        return reduce(combine, map(read, self._readings))

    def _class(self) -> CharSet:
        start = self.position - 1
        negated = self._take("^")
        first = self.position

        def read(space: CharSet) -> CharSet:
            self.position = first
            chars = self._members(start, space)
            return charsets.negation(chars) if negated else chars

        return self._agreed(read)

    def _members(self, start: int, space: CharSet) -> CharSet:
        members: list[CharSet] = []
        while not self._take("]"):
            if self.position >= len(self.text):
                self.refuse("this [ has no ]", position=start)
            low = self._class_member(space)
            if self._next() == "-" and self.text[self.position + 1 : self.position + 2] != "]":
                members.append(self._class_range(low, space))
            else:
                members.append(low)
        return charsets.union(*members)

    def _class_range(self, low: CharSet, space: CharSet) -> CharSet:
        dash = self.position
        self.position += 1
        if self.position >= len(self.text):
            self.refuse("this range has no end", position=dash)
        high = self._class_member(space)
        if charsets.size(low) != 1 or charsets.size(high) != 1:
            return charsets.union(low, charsets.charset_of("-"), high)
        if low[0][0] > high[0][0]:
            self.refuse("this range ends before it begins", position=dash)
        return charsets.charset([(low[0][0], high[0][0])])

    def _class_member(self, space: CharSet) -> CharSet:
        start = self.position
        self.position += 1
        if self.text[start] != "\\":
            return charsets.charset_of(self.text[start])
        if self._take("b"):
            return charsets.charset_of("\b")
        return self._escaped_set(start, space)

    def _escaped_set(self, start: int, space: CharSet) -> CharSet:
        character = self._next()
        self.position += 1
        if character != "" and character in "dswpDSWP":
            chars = _CLASSES.get(character.lower())
            if chars is None:
                chars = space if character in "sS" else self._category(start)
            return chars if character.islower() else charsets.negation(chars)
        if character in ("x", "u"):
            return self._code_point(start, 2 if character == "x" else 4)
        return self._escaped_character(start, character)

    def _escaped_character(self, start: int, character: str) -> CharSet:
        if character in _CONTROLS:
            return charsets.charset_of(_CONTROLS[character])
        if character == "0" and not self._next().isdigit():
            return charsets.charset_of("\0")
        if character == "c" and self._next().isascii() and self._next().isalpha():
            self.position += 1
            return charsets.charset_of(chr(ord(self.text[self.position - 1]) % 32))
        if character == "" or character.isalnum():
            self.refuse(f"the escape \\{character} isn't known", position=start)
        return charsets.charset_of(character)

    def _code_point(self, start: int, num_digits: int) -> CharSet:
        if self._take("{"):
            end = self.text.find("}", self.position)
            digits = self.text[self.position : end] if end >= 0 else ""
            self.position = end + 1
        else:
            digits = self.text[self.position : self.position + num_digits]
            self.position += num_digits
            if len(digits) < num_digits:
                digits = ""
        value = int(digits, 16) if _is_hex(digits) else -1
        if 0xD800 <= value < 0xDC00 and self.text[self.position : self.position + 2] == "\\u":
            low = self.text[self.position + 2 : self.position + 6]
            if len(low) == 4 and _is_hex(low) and 0xDC00 <= int(low, 16) < 0xE000:
                self.position += 6
                value = 0x10000 + ((value - 0xD800) << 10) + int(low, 16) - 0xDC00
        if not 0 <= value <= charsets.MAX_CODE_POINT:
            self.refuse("this escape has no code point", position=start)
        return charsets.charset([(value, value)])

    def _category(self, start: int) -> CharSet:
        end = self.text.find("}", self.position)
        if not self._take("{") or end < 0:
            self.refuse("\\p has no {category}", position=start)
        name = self.text[self.position : end]
        self.position = end + 1
        for prefix in ("General_Category=", "gc="):
            name = name.removeprefix(prefix)
        name = _CATEGORIES.get(name, name)
        if name not in _SHORT_CATEGORIES:
            self.refuse(f"the Unicode property {name!r} isn't known", position=start)
        return charsets.category(name)

    def _next(self) -> str:
        return self.text[self.position : self.position + 1]

    def _take(self, sign: str) -> bool:
        if self.text.startswith(sign, self.position):
            self.position += len(sign)
            return True
        return False


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _is_hex(text: str) -> bool:
    return 0 < len(text) <= 6 and all(character in "0123456789abcdefABCDEF" for character in text)
