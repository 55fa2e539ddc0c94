"""Keeps the contents of a conversation apart from the template's own text.

A template writes contents and control tokens into one text. So that a content can't write a
control token, nor a part of one, a mark goes into it wherever it could: into every control token
that it spells out, and next to every character where one could begin or end. After rendering, the
control tokens that are still whole are the template's own, and the marks come off again.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.text.control_tokens import ControlToken, ControlTokens

# Templates may print a value the way Python writes it out, which escapes what is not printable:
# so marks are letters, if of scripts that hardly any text is in.
_MARKS = (range(0x13000, 0x13430), range(0x14400, 0x14647), range(0x12000, 0x1239A))

_STRUCTURE_WORDS = frozenset(
    [
        "array",
        "boolean",
        "default",
        "description",
        "enum",
        "function",
        "integer",
        "items",
        "maximum",
        "minimum",
        "name",
        "null",
        "number",
        "object",
        "parameters",
        "properties",
        "required",
        "string",
        "title",
        "type",
    ]
)
"""Words of JSON Schema that templates compare with: they stay whole."""


class OwnToken(NamedTuple):
    """A control token that the template itself wrote, with the white space that belongs to it."""

    start: int
    end: int
    token: ControlToken


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A rendered template.

    Attributes:
        text: The text without marks.
        own_tokens: The template's own control tokens, in order.
        is_clean: Whether these are all control tokens that the text spells out.
    """

    text: str
    own_tokens: Sequence[OwnToken]
    is_clean: bool

    def after(self, position: int) -> "RenderedChat":
        """What follows `position`, which lies in no own token."""
        own = [
            OwnToken(token.start - position, token.end - position, token.token)
            for token in self.own_tokens
            if token.start >= position
        ]
        return RenderedChat(text=self.text[position:], own_tokens=own, is_clean=self.is_clean)


class ContentMarks:
    """Puts marks into contents and reads rendered texts. Immutable."""

    def __init__(self, controls: ControlTokens) -> None:
        self._controls = controls
        texts = list(controls.by_text)
        self._infixes = "\n".join(text[1:-1] for text in texts)
        self._beginnings = frozenset(text[:size] for text in texts for size in range(1, len(text)))
        self._endings = frozenset(text[size:] for text in texts for size in range(1, len(text)))
        self._longest = max(map(len, texts), default=0)
        firsts = {text[0] for text in texts}
        lasts = {text[-1] for text in texts}
        self._first = _any_of(firsts)
        self._last = _any_of(lasts)
        self._hot = _any_of(firsts | lasts)

    def choose(self, contents: Sequence[str], template: str) -> str:
        """A mark that occurs in none of the contents, nor in the template.

        Raises:
            AntiphonError: TEMPLATE_ERROR; the contents use up all of them.
        """
        used = set(template)
        used.update(*contents)
        for codes in _MARKS:
            for mark in map(chr, codes):
                if mark not in used and not any(_escaped(mark) in text for text in contents):
                    return mark
        raise AntiphonError(
            ErrorReason.TEMPLATE_ERROR,
            "the conversation holds every character that the server could tell contents apart by",
        )

    def concerns(self, contents: Iterable[str]) -> bool:
        """Whether any content could take part in a control token."""
        return any(self._hot.search(text) or self._is_infix(text) for text in contents)

    def mark_everywhere(self, text: str, mark: str) -> str:
        """Marks each place where a control token could begin or end."""
        text = self._last.sub(lambda found: mark + found.group(), text)
        text = self._first.sub(lambda found: found.group() + mark, text)
        return self._mark_infix(text, mark)

    def mark_sparingly(self, text: str, mark: str) -> str:
        """Marks control tokens, and parts of them where the content begins and ends."""
        text = self._controls.pattern.sub(
            lambda found: found.group()[0] + mark + found.group()[1:], text
        )
        return self._mark_infix(self._mark_edges(text, mark), mark)

    def read_unmarked(self, text: str) -> RenderedChat:
        """Reads a rendered text whose contents take part in no control token."""
        own = [OwnToken(*found) for found in self._controls.find(text)]
        return RenderedChat(text=text, own_tokens=own, is_clean=True)

    def read(self, marked: str, mark: str) -> RenderedChat:
        """Takes the marks off a rendered text and finds the template's own control tokens."""
        marks = re.compile(f"{re.escape(mark)}|{re.escape(_escaped(mark))}")
        own: list[OwnToken] = []
        pieces: list[str] = []
        position = done = 0
        for found in self._controls.find(marked):
            piece = marks.sub("", marked[done : found.start])
            start = position + len(piece)
            own_text = marks.sub("", marked[found.start : found.end])
            position = start + len(own_text)
            pieces += [piece, own_text]
            own.append(OwnToken(start, position, found.token))
            done = found.end
        pieces.append(marks.sub("", marked[done:]))
        text = "".join(pieces)
        spelled = [OwnToken(*found) for found in self._controls.find(text)]
        return RenderedChat(text=text, own_tokens=own, is_clean=spelled == own)

    def _mark_edges(self, text: str, mark: str) -> str:
        body = text.rstrip()
        for size in range(min(self._longest - 1, len(body)), 0, -1):
            if body[-size:] in self._beginnings:
                text = body + mark + text[len(body) :]
                break
        body = text.lstrip()
        for size in range(min(self._longest - 1, len(body)), 0, -1):
            if body[:size] in self._endings:
                text = text[: len(text) - len(body)] + mark + body
                break
        return text

    def _mark_infix(self, text: str, mark: str) -> str:
        """A content that is the middle of a control token must not be framed to make one."""
        return mark + text if self._is_infix(text) else text

    def _is_infix(self, text: str) -> bool:
        body = text.strip()
        return (
            0 < len(body) < self._longest and body not in _STRUCTURE_WORDS and body in self._infixes
        )


def _any_of(characters: set[str]) -> re.Pattern[str]:
    return re.compile("[" + re.escape("".join(sorted(characters))) + "]" if characters else "(?!)")


def _escaped(mark: str) -> str:
    """The mark as templates that want ASCII write it in JSON."""
    return json.dumps(mark)[1:-1]
