"""A language as a terminal's right side in a Lark grammar, as it is or inside a JSON string."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from antiphon_server.constraints.languages import charsets
from antiphon_server.constraints.languages.charsets import CharSet
from antiphon_server.constraints.languages.open_parts import open_parts
from antiphon_server.constraints.languages.terms import ANY_TEXT, Kind, Term, choice, sequence

_SHORT_ESCAPES: Final = {
    0x08: "b",
    0x09: "t",
    0x0A: "n",
    0x0C: "f",
    0x0D: "r",
    0x22: '"',
    0x5C: "\\",
}
_ESCAPED: Final = charsets.charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_UNESCAPED: Final = charsets.negation(_ESCAPED)

_NOT_ITSELF: Final = re.compile("[^0-9A-Za-z]")
_ANY_BYTES: Final = r"~/[^\s\S]/"

_SetWriter = Callable[[CharSet], str]


def plain_text(term: Term) -> str:
    """Returns the expression of the language's texts as they are."""
    return _expression(term, _plain_set)


def string_texts(term: Term, *, before: str = "") -> list[str]:
    """Returns expressions that together are the JSON strings of a language's texts.

    Every character has one way to be written: itself, or the shortest escape where it needs one.
    So a language's complement and intersections stay what they are. They stay outermost, too: the
    library looks through an intersection with one complement there, and only there, to see that
    nearly any text goes.

    Args:
        term: The language.
        before: An expression of what may stand before the opening quote.
    """
    if term.is_plain:
        return [_string(each, before) for each in (term, *open_parts(term))]
    if term.kind is Kind.CHOICE:
        return [text for part in term.parts for text in string_texts(part, before=before)]
    parts = term.parts if term.kind is Kind.BOTH else (term,)
    included = [part for part in parts if part.kind is not Kind.COMPLEMENT] or [ANY_TEXT]
    excluded = [part.parts[0] for part in parts if part.kind is Kind.COMPLEMENT]
    written = [_string(part, before) for part in included]
    if excluded:
        written.append(f"~({_string(choice(*excluded), before)})")
    return [" & ".join(written), *(_string(each, before) for each in open_parts(term))]


def _string(term: Term, before: str) -> str:
    if term.is_plain:
        return rf"{before}/\x22{_regex(term, _quoted_set)}\x22/"
    return rf"({before}/\x22/ {_expression(term, _quoted_set)} /\x22/)"


def escape_regex(text: str) -> str:
    """Returns a regular expression that matches the text."""
    return _NOT_ITSELF.sub(lambda each: _escape(ord(each[0])), text)


def _expression(term: Term, write_set: _SetWriter) -> str:
    """An expression of Lark's, whose regular expressions lack intersection and complement."""
    if term.is_plain:
        return f"/{_regex(term, write_set)}/"
    match term.kind:
        case Kind.SEQUENCE:
            return "(" + " ".join(_expression(part, write_set) for part in term.parts) + ")"
        case Kind.CHOICE:
            return "(" + " | ".join(_expression(part, write_set) for part in term.parts) + ")"
        case Kind.REPEAT:
            inner = _expression(term.parts[0], write_set)
            return f"({inner}){_times(term)}"
        case Kind.COMPLEMENT:
            return _conjunction((ANY_TEXT, term), write_set)
        case _:
            return _conjunction(term.parts, write_set)


def _conjunction(parts: tuple[Term, ...], write_set: _SetWriter) -> str:
    """Complements are of all bytes, so something must stand beside them that is valid text."""
    written = []
    excluded = [part.parts[0] for part in parts if part.kind is Kind.COMPLEMENT]
    included = [part for part in parts if part.kind is not Kind.COMPLEMENT]
    for part in included or [ANY_TEXT]:
        written.append(_expression(part, write_set))
    for part in excluded:
        text = _expression(part, write_set) if write_set is not _plain_set else _open_ending(part)
        written.append(f"~{_grouped(text)}")
    return "(" + " & ".join(written) + ")"


def _open_ending(term: Term) -> str:
    """An excluded language, written so that the library sees what is excluded whatever follows.

    Behind any bytes there is nothing left of a complement. Behind any characters there is what is
    no text, and the library would have to follow all that stands beside it to see that none is.
    """
    if term.kind is Kind.CHOICE and term.parts:
        return "(" + " | ".join(map(_open_ending, term.parts)) + ")"
    if term.kind is not Kind.SEQUENCE or term.parts[-1:] != (ANY_TEXT,):
        return _expression(term, _plain_set)
    return f"({_expression(sequence(*term.parts[:-1]), _plain_set)} {_ANY_BYTES})"


def _grouped(expression: str) -> str:
    return expression if expression.startswith("(") else f"({expression})"


def _regex(term: Term, write_set: _SetWriter) -> str:
    match term.kind:
        case Kind.CHARS:
            return write_set(term.chars)
        case Kind.TEXT:
            return _NOT_ITSELF.sub(
                lambda each: write_set(((ord(each[0]), ord(each[0])),)), term.text
            )
        case Kind.SEQUENCE:
            return "".join(_regex(part, write_set) for part in term.parts) or "(?:)"
        case Kind.CHOICE:
            return "(?:" + "|".join(_regex(part, write_set) for part in term.parts) + ")"
        case _:
            inner = _regex(term.parts[0], write_set)
            return f"(?:{inner}){_times(term)}"


def _times(term: Term) -> str:
    if term.low == 0 and term.high is None:
        return "*"
    if term.low == 0 and term.high == 1:
        return "?"
    if term.low == 1 and term.high is None:
        return "+"
    return f"{{{term.low},{'' if term.high is None else term.high}}}"


@lru_cache(maxsize=1024)
def _plain_set(chars: CharSet) -> str:
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _escape(chars[0][0])
    return "[" + "".join(_range(low, high) for low, high in chars) + "]"


@lru_cache(maxsize=1024)
def _quoted_set(chars: CharSet) -> str:
    options = []
    unescaped = charsets.intersection(chars, _UNESCAPED)
    if unescaped:
        options.append(_plain_set(unescaped))
    escaped = charsets.intersection(chars, _ESCAPED)
    if escaped:
        options.append(_ALL_ESCAPES if escaped == _ESCAPED else _escapes(escaped))
    return options[0] if len(options) == 1 else "(?:" + "|".join(options) + ")"


def _escapes(escaped: CharSet) -> str:
    written = []
    for low, high in escaped:
        for code_point in range(low, high + 1):
            short = _SHORT_ESCAPES.get(code_point)
            tail = _escape(ord(short)) if short else f"u{code_point:04x}"
            written.append(r"\\" + tail)
    return written[0] if len(written) == 1 else "(?:" + "|".join(written) + ")"


_ALL_ESCAPES: Final = r"\\(?:[bfnrt\x22\\]|u00(?:0[0-7be-f]|1[0-9a-f]))"


def _range(low: int, high: int) -> str:
    return _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}"


def _escape(code_point: int) -> str:
    character = chr(code_point)
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{code_point:X}}}"
