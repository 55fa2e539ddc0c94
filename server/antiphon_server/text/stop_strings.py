"""Finds stop strings in a text that comes in pieces."""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStringMatch:
    """A stop string in the text: which, and where it ends, in characters of the text scanned."""

    text: str
    end: int

    @property
    def start(self) -> int:
        """Where it begins."""
        return self.end - len(self.text)


class StopStringScanner:
    """An automaton over all stop strings: one step a character, however many there are.

    The match that ends first wins; of those that end together, the one that begins first, which
    is the longest. Building takes time and memory in proportion to the strings' characters.

    Attributes:
        num_held: Characters at the end of what was scanned that may begin a stop string.
        num_scanned: Characters scanned.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        assert all(stop_strings), "an empty stop string matches everywhere"
        self.num_held = 0
        self.num_scanned = 0
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        self._fallback = [0]
        for stop in stop_strings:
            self._add(stop)
        self._link()
        first = "".join(re.escape(character) for character in self._next[0])
        self._first_character = re.compile(f"[{first}]") if first else None
        self._state = 0

    def scan(self, text: str) -> StopStringMatch | None:
        """Reads on; the first match, after which no more is read."""
        if self._first_character is None:
            self.num_scanned += len(text)
            return None
        state, position, size = self._state, 0, len(text)
        while position < size:
            if state == 0:
                found = self._first_character.search(text, position)
                if found is None:
                    break
                position = found.start()
            state = self._step(state, text[position])
            position += 1
            match = self._match[state]
            if match is not None:
                self.num_scanned += position
                self.num_held = 0
                return StopStringMatch(text=match, end=self.num_scanned)
        self._state = state
        self.num_scanned += size
        self.num_held = self._depth[state]
        return None

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
                self._fallback.append(0)
            state = following
        self._match[state] = stop

    def _link(self) -> None:
        """Sets each state's fallback: the longest other beginning that its characters end in."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                waiting.append(following)
                fallback = self._step(self._fallback[state], character)
                self._fallback[following] = fallback
                if self._match[following] is None:
                    self._match[following] = self._match[fallback]
