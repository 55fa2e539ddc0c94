"""Lexers of the second backend, which grow as outputs make them find out more.

All matchers of a grammar share a lexer, whose states the library limits. It begins with few; at
its limit it is compiled again with room for more, and each matcher goes to its place there. What
grammars are kept for later is small: a large lexer lives as long as outputs use it.
"""

import re
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from llguidance import LLMatcher, LLParserLimits

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.grammar.base import GrammarError

NUM_STATES = (256, 1024, 4096, 16384, 68 << 10)
"""States that a lexer may have, from its first size to its last: what constraints may count to, and
some more."""
_MOST_KEPT = 4096
"""Larger ones are not kept for later outputs, and need room among all others that are."""
_STATE_BYTES = 1200
"""Measured, for what a state takes with its transitions."""
_FUEL_BYTES = 5
"""Measured: the library counts expressions that it makes as fuel."""
_FUEL_PER_STATE = 256
"""From here on expressions take more than states; a lexer is at its limit with so many too."""
_LOOK_EVERY_S = 0.03
"""Processor time of masks between two looks at the fuel: a look takes half a millisecond."""
_LEAST_MASKS = 16
"""A lexer that was at its limit in fewer will be so again and again."""
_STEP_FUEL = 200_000
"""Expressions that a mask may make, about."""
_LATER_STEP_FUEL = 5 * _STEP_FUEL
"""For a lexer that takes another's place: it finds out at once what that one did over many masks.
Time is limited beside it, for whoever makes masks."""
_FUEL = re.compile(r'"lexer_cost": (\d+)')
_FAR = 1 << 30

Compile = Callable[[LLParserLimits], LLMatcher]


class Lexer:
    """What matchers have found out together of a grammar's terminals."""

    def __init__(self, beginning: LLMatcher, num_states: int) -> None:
        """Takes a matcher that was compiled with room for so many states."""
        self.beginning = beginning
        self.num_states = num_states
        self.num_masks = 0
        self.first_fuel = self.fuel = _fuel_of(beginning)
        self._unseen_s = 0.0

    @property
    def size_bytes(self) -> int:
        """What it may take, at most about."""
        return _STATE_BYTES * self.num_states + _FUEL_BYTES * self.fuel

    @property
    def is_spent(self) -> bool:
        """Whether its expressions take more than its states may."""
        return self.fuel - self.first_fuel > _FUEL_PER_STATE * self.num_states

    @property
    def is_large(self) -> bool:
        """Whether it is kept only while outputs use it."""
        return self.num_states > _MOST_KEPT

    @property
    def next_num_states(self) -> int | None:
        """How many states the lexer should have that takes its place; None: it wouldn't last."""
        place = NUM_STATES.index(self.num_states) + 1
        if place < len(NUM_STATES):
            return NUM_STATES[place]
        return self.num_states if self.num_masks >= _LEAST_MASKS else None

    def note_mask(self, matcher: LLMatcher, used_s: float) -> None:
        """Notes that `matcher`, which is of this lexer, has made a mask in so much time."""
        self.num_masks += 1
        self._unseen_s += used_s
        if self._unseen_s > _LOOK_EVERY_S and not matcher.is_error():
            self._unseen_s = 0.0
            self.fuel = max(self.fuel, _fuel_of(matcher))


class LargeLexers:
    """The large lexers of a process, within a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lexers: weakref.WeakSet[Lexer] = weakref.WeakSet()
        self._changing = threading.Lock()

    def make(self, beginning: Callable[[], LLMatcher], num_states: int) -> Lexer:
        """Returns a new one. Raises GrammarError, OVERLOADED, where there is no room."""
        with self._changing:
            num_bytes = sum(lexer.num_states for lexer in self._lexers) * _STATE_BYTES
            if num_bytes + num_states * _STATE_BYTES > self._max_bytes:
                raise GrammarError(
                    ErrorReason.OVERLOADED,
                    f"The constraint has grown, and those of outputs that run take {num_bytes} "
                    f"bytes; the limit is {self._max_bytes} bytes, engine.grammar_cache_bytes. "
                    "Simplify it, or retry later.",
                    metadata={"limit_bytes": str(self._max_bytes)},
                    retry_delay_s=1.0,
                )
            lexer = Lexer(beginning(), num_states)
            self._lexers.add(lexer)
            return lexer


class LexerSource:
    """Lexers of one grammar. May be used by several threads."""

    def __init__(
        self,
        compile_with: Compile,
        large_lexers: LargeLexers,
        *,
        token_sizes: Sequence[int],
        first_num_states: int,
    ) -> None:
        """Takes what compiles the grammar, and does so at once. Raises GrammarError."""
        self.token_sizes = token_sizes
        """In bytes, by id."""
        self._first_num_states = first_num_states
        self._compile_with = compile_with
        self._large_lexers = large_lexers
        self._changing = threading.Lock()
        self._kept: Lexer | None = None
        self._shared: Callable[[], Lexer | None] = _nothing
        self.share()

    @property
    def size_bytes(self) -> int:
        """What the lexer takes that is kept for later outputs."""
        kept = self._kept
        return kept.size_bytes if kept is not None else 0

    def share(self) -> Lexer:
        """Returns the lexer of outputs that begin. Raises GrammarError: there is no room for it."""
        with self._changing:
            return self._shared() or self._share(self._first_num_states, _STEP_FUEL)

    def next_shared(self, lexer: Lexer) -> Lexer | None:
        """Returns what those go on with who share a lexer that is at its limit.

        None where it wouldn't last. Raises GrammarError: there is no room for it.
        """
        with self._changing:
            shared = self._shared()
            if shared is not None and shared is not lexer:
                return shared
            num_states = lexer.next_num_states
            return None if num_states is None else self._share(num_states, _LATER_STEP_FUEL)

    def own(self, num_states: int) -> Lexer:
        """Returns a lexer for one output alone. Raises GrammarError: there is no room for it."""
        return self._make(num_states, _LATER_STEP_FUEL)

    def forget(self, lexer: Lexer) -> None:
        """Lets outputs that begin share a lexer no more that is broken."""
        with self._changing:
            if self._shared() is lexer:
                self._kept = None
                self._shared = _nothing

    def _share(self, num_states: int, step_fuel: int) -> Lexer:
        lexer = self._make(num_states, step_fuel)
        self._kept = None if lexer.is_large else lexer
        self._shared = weakref.ref(lexer)
        return lexer

    def _make(self, num_states: int, step_fuel: int) -> Lexer:
        """Compiles the grammar with the least room from that on in which its beginning fits."""
        for more in NUM_STATES[NUM_STATES.index(num_states) :]:
            try:
                if more > _MOST_KEPT:
                    return self._large_lexers.make(partial(self._compile, more, step_fuel), more)
                return Lexer(self._compile(more, step_fuel), more)
            except GrammarError as error:
                if not is_of_states(error) or more == NUM_STATES[-1]:
                    raise
        raise AssertionError("the last size returns or raises")

    def _compile(self, num_states: int, step_fuel: int) -> LLMatcher:
        return self._compile_with(
            LLParserLimits(
                step_lexer_fuel=step_fuel,
                step_max_items=50_000,
                max_lexer_states=num_states,
                verbose_errors=True,  # The fuel is told nowhere else.
            )
        )


def is_of_states(error: GrammarError) -> bool:
    """Returns whether an error of the library says that a lexer has as many states as it may."""
    return "too many states" in error.message


def _nothing() -> None:
    """Stands for a reference to a lexer that is gone."""


def _fuel_of(matcher: LLMatcher) -> int:
    """Returns the fuel that a matcher's lexer has used, as the library tells it with an error."""
    asked = matcher.deep_copy()
    asked.rollback(_FAR)
    told = _FUEL.search(asked.get_error())
    assert told is not None, "the library tells no fuel"
    return int(told[1])
