"""Random regular expressions, and texts that they match or nearly do.

Each is spelt twice, as ECMA-262 has it and as Python does, so that Python's own engine can judge.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LETTERS = 'ab1_ -"é\n京'
_MAX_DEPTH = 4
_BLANKS = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SPECIAL = frozenset(r"^$\.*+?()[]{}|/")
_CLASSES = {
    ".": r"[^\n\r\u2028\u2029]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[a-zA-Z0-9_]",
    r"\W": "[^a-zA-Z0-9_]",
    r"\s": f"[{_BLANKS}]",
    r"\S": f"[^{_BLANKS}]",
}
# Python has an opinion of its own on `\B` in a text of nothing.
_EDGES = {"^": r"\A", "$": r"\Z", r"\b": r"\b", r"\B": r"(?!\b)"}
_REPEATS = (("*", 0, 3), ("+", 1, 3), ("?", 0, 1), ("{2}", 2, 2), ("{1,3}", 1, 3), ("{2,}", 2, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """An expression, or a part of one."""

    text: str
    """As ECMA-262 has it."""
    python: str
    sample: Callable[[], str]
    """Draws a text that it matches, edges and looks left out of account."""

    @property
    def judge(self) -> re.Pattern[str]:
        """Python's."""
        return re.compile(self.python, re.ASCII)


class PatternMaker:
    """Makes expressions of one chooser."""

    def __init__(self, chooser: random.Random) -> None:
        self._chooser = chooser

    def make(self, depth: int = 0) -> Pattern:
        """Returns one."""
        ways = [self._row(depth) for _ in range(self._chooser.choice((1, 1, 1, 2, 3)))]
        if len(ways) == 1:
            return ways[0]
        return Pattern(
            text="|".join(way.text for way in ways),
            python="|".join(way.python for way in ways),
            sample=lambda: self._chooser.choice(ways).sample(),
        )

    def make_edged(self) -> Pattern:
        """Returns one with edges of words between characters."""
        parts = [self._atom()]
        for _ in range(self._chooser.choice((1, 1, 2))):
            sign = self._chooser.choice((r"\b", r"\B"))
            parts += [Pattern(text=sign, python=_EDGES[sign], sample=str), self._atom()]
        return _in_a_row(parts)

    def near(self, text: str) -> str:
        """Returns a text that differs in a character or two."""
        for _ in range(self._chooser.choice((1, 1, 2))):
            place = self._chooser.randint(0, len(text))
            letter = self._chooser.choice(["", *LETTERS])
            text = text[:place] + letter + text[place + self._chooser.randint(0, 1) :]
        return text

    def any_text(self) -> str:
        """Returns any text of few letters."""
        return "".join(self._chooser.choices(LETTERS, k=self._chooser.randint(0, 5)))

    def _row(self, depth: int) -> Pattern:
        return _in_a_row(
            [self._part(depth) for _ in range(self._chooser.randint(0 if depth else 1, 3))]
        )

    def _part(self, depth: int) -> Pattern:
        chance = self._chooser.random()
        if chance < 0.06:
            sign = self._chooser.choice(list(_EDGES))
            return Pattern(text=sign, python=_EDGES[sign], sample=str)
        if chance < 0.12 and depth < _MAX_DEPTH:
            inner, sign = self.make(depth + 1), self._chooser.choice("=!")
            return Pattern(
                text=f"(?{sign}{inner.text})", python=f"(?{sign}{inner.python})", sample=str
            )
        atom = self._group(depth) if chance < 0.4 and depth < _MAX_DEPTH else self._atom()
        return self._repeated(atom) if self._chooser.random() < 0.4 else atom

    def _group(self, depth: int) -> Pattern:
        inner, opener = self.make(depth + 1), self._chooser.choice(("(", "(?:"))
        return Pattern(
            text=f"{opener}{inner.text})",
            python=f"(?:{inner.python})",
            sample=inner.sample,
        )

    def _repeated(self, atom: Pattern) -> Pattern:
        sign, least, most = self._chooser.choice(_REPEATS)
        return Pattern(
            text=atom.text + sign,
            python=atom.python + sign,
            sample=lambda: "".join(
                atom.sample() for _ in range(self._chooser.randint(least, most))
            ),
        )

    def _atom(self) -> Pattern:
        chance = self._chooser.random()
        if chance < 0.55:
            letter = self._chooser.choice(LETTERS)
            return Pattern(
                text="\\" + letter if letter in _SPECIAL else letter,
                python=re.escape(letter),
                sample=lambda: letter,
            )
        if chance < 0.75:
            name = self._chooser.choice(list(_CLASSES))
            return self._of_class(name, _CLASSES[name])
        inside = "".join(self._chooser.sample(["a-b", "0-9", "é", "京", " ", '"', r"\n", "_"], k=2))
        spelt = f"[{self._chooser.choice(('', '^'))}{inside}]"
        return self._of_class(spelt, spelt)

    def _of_class(self, text: str, python: str) -> Pattern:
        members = [letter for letter in LETTERS if re.fullmatch(python, letter)]
        assert members
        return Pattern(text=text, python=python, sample=lambda: self._chooser.choice(members))


def _in_a_row(parts: Sequence[Pattern]) -> Pattern:
    return Pattern(
        text="".join(part.text for part in parts),
        python="".join(part.python for part in parts),
        sample=lambda: "".join(part.sample() for part in parts),
    )
