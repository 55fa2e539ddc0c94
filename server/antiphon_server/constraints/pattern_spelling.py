"""JSON Schema's patterns, which are ECMAScript's, as Python spells them."""

import re
from typing import Final

_BLANKS: Final = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ANY: Final = r"[^\n\r\u2028\u2029]"
_KNOWN_ESCAPES: Final = frozenset(r"dDwWbBtnvfr0123456789ux^$\.*+?()[]{}|/-")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Returns what matches the same texts.

    Raises:
        ValueError: it is not known how to say that.
        re.error: it is no pattern.
    """
    spelt: list[str] = []
    rest = pattern
    in_class = False
    while rest:
        taken, said, in_class = _next(rest, in_class)
        spelt.append(said)
        rest = rest[len(taken) :]
    return re.compile("".join(spelt), re.ASCII)


def _next(rest: str, in_class: bool) -> tuple[str, str, bool]:
    """Returns what is taken, how Python says it, and whether a class goes on behind it."""
    if rest.startswith("\\"):
        return rest[:2], _escape(rest[:2], rest[2:3], in_class), in_class
    if in_class:
        return rest[0], "\\[" if rest[0] == "[" else rest[0], rest[0] != "]"
    if rest.startswith(("[]", "[^]")):
        raise ValueError("a class of nothing, or of everything")
    if rest.startswith("[^"):
        return "[^", "[^", True
    if rest.startswith("(?<") and rest[3:4] not in ("=", "!"):
        return "(?<", "(?P<", False
    said = {".": _ANY, "$": r"\Z"}.get(rest[0], rest[0])
    return rest[0], said, rest[0] == "["


def _escape(escape: str, behind: str, in_class: bool) -> str:
    kind = escape[1:]
    if kind == "s":
        return _BLANKS if in_class else f"[{_BLANKS}]"
    if kind == "S" and not in_class:
        return f"[^{_BLANKS}]"
    if kind == "/":
        return "/"
    if kind not in _KNOWN_ESCAPES or (kind == "u" and behind == "{"):
        raise ValueError(f"the escape {escape}")
    return escape
