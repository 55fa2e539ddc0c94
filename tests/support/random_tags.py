"""Random structural tags of a small alphabet, and texts that are nearly theirs."""

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

Node: TypeAlias = dict[str, object]

_LETTERS = "ab<"
_SCHEMAS: Sequence[object] = (
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
     "additionalProperties": False},
    {"type": "array", "items": {"enum": [1, 22]}},
    {"const": "a"},
    {"type": "integer", "minimum": 0, "maximum": 12},
    {"type": "null"},
)  # fmt: skip
_PATTERNS = ("a|bb", "[ab]*<", "(ab)+", "[^<]{0,2}", "b?a?")
_PIECES = ("a", "b", "<", "ab", "<a", '{"a":true}', "[1,22]", "[]", '"a"', "null", "7", "12")
_MAX_DEPTH = 3


class RandomTags:
    """Draws them."""

    def __init__(self, chooser: random.Random) -> None:
        self._chooser = chooser

    def tag(self) -> Node:
        """Returns a structural tag."""
        return {"type": "structural_tag", "format": self._format(0)}

    def changed(self, text: str) -> str:
        """Returns a text that is another by one piece, taken out, put in or put in the place."""
        at = self._chooser.randint(0, len(text))
        gone = self._chooser.choice((0, 0, 1, 1, 2))
        return text[:at] + self._chooser.choice(("", *_PIECES)) + text[at + gone :]

    def text(self) -> str:
        """Returns any text of the pieces."""
        return "".join(self._chooser.choices(_PIECES, k=self._chooser.randint(0, 5)))

    def _format(self, depth: int) -> Node:
        simple = (self._fixed, self._fixed, self._value, self._free, self._expression)
        joined = (self._row, self._row, self._or, self._again, self._tag, self._triggered,
                  self._separated, self._dispatch)  # fmt: skip
        if depth >= _MAX_DEPTH or self._chooser.random() < 0.3 * depth:
            return self._chooser.choice(simple)()
        make: Callable[[int], Node] = self._chooser.choice(joined)
        return make(depth + 1)

    def _word(self, shortest: int = 1) -> str:
        return "".join(self._chooser.choices(_LETTERS, k=self._chooser.randint(shortest, 3)))

    def _flag(self) -> bool:
        return self._chooser.random() < 0.4

    def _fixed(self) -> Node:
        return {"type": "const_string", "value": self._word(0)}

    def _value(self) -> Node:
        return {
            "type": "json_schema",
            "json_schema": self._chooser.choice(_SCHEMAS),
            "max_whitespace_cnt": 1,
        }

    def _free(self) -> Node:
        node: Node = {"type": "any_text", "excludes": [self._word() for _ in range(self._flag())]}
        return {**node, "max_chars": self._chooser.randint(0, 3)} if self._flag() else node

    def _expression(self) -> Node:
        return {"type": "regex", "pattern": self._chooser.choice(_PATTERNS)}

    def _elements(self, depth: int) -> list[Node]:
        return [self._format(depth) for _ in range(self._chooser.randint(1, 3))]

    def _row(self, depth: int) -> Node:
        return {"type": "sequence", "elements": self._elements(depth)}

    def _or(self, depth: int) -> Node:
        return {"type": "or", "elements": self._elements(depth)}

    def _again(self, depth: int) -> Node:
        kind = self._chooser.choice(("optional", "star", "plus", "repeat"))
        node: Node = {"type": kind, "content": self._format(depth)}
        if kind != "repeat":
            return node
        low = self._chooser.randint(0, 2)
        return {**node, "min": low, "max": self._chooser.choice((-1, low, low + 1))}

    def _tag(self, depth: int, begin: str = "") -> Node:
        ends = [self._word() for _ in range(self._chooser.randint(1, 2))]
        return {
            "type": "tag",
            "begin": begin + self._word(0),
            "content": self._format(depth),
            "end": ends if self._flag() else ends[0],
        }

    def _triggered(self, depth: int) -> Node:
        triggers = [self._word() for _ in range(self._chooser.randint(1, 2))]
        return {
            "type": "triggered_tags",
            "triggers": triggers,
            "tags": [self._tag(depth, trigger) for trigger in triggers],
            "at_least_one": self._flag(),
            "stop_after_first": self._flag(),
            "excludes": [self._word() for _ in range(self._flag())],
        }

    def _separated(self, depth: int) -> Node:
        return {
            "type": "tags_with_separator",
            "tags": [self._tag(depth) for _ in range(self._chooser.randint(1, 2))],
            "separator": self._word(0),
            "at_least_one": self._flag(),
            "stop_after_first": self._flag(),
        }

    def _dispatch(self, depth: int) -> Node:
        return {
            "type": "dispatch",
            "rules": [
                [self._word(), self._format(depth)] for _ in range(self._chooser.randint(1, 2))
            ],
            "loop": self._flag(),
            "excludes": [self._word() for _ in range(self._flag())],
        }
