"""Makes guides of requests on threads of its own, so that no step waits for a compilation."""

import enum
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog

from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_engine.api.grammar import LOADED_IN_TURN, Grammar, Thinking
from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.api.priority import lower, lower_to_leftovers
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import CompiledGrammar, GrammarError, mask_words, without_frames
from antiphon_engine.grammar.guide import EndRules, Guide
from antiphon_engine.grammar.thinking import EndMarker, ThinkingGate
from antiphon_engine.grammar.token_clock import MAX_LEFT_BEHIND, TokenClock, too_complex
from antiphon_engine.grammar.vocabulary import Vocabulary

_log = structlog.get_logger(__name__)

_NICENESS = 10
_NUM_MARKERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request whose guides are there, or why it can have none."""

    request_id: int
    guides: tuple[Guide, ...] = ()
    """One for each output."""
    error: AntiphonError | None = None


class _Order(enum.Enum):
    """What threads are told beside the requests that they are to prepare."""

    LOAD = enum.auto()
    END = enum.auto()


def needs_guides(request: GenerationRequest) -> bool:
    """Returns whether something holds for a request's tokens."""
    has_budget = request.thinking is not None and request.thinking.max_tokens is not None
    return request.grammar is not None or has_budget


class GuideMaker:
    """Prepares requests in the order in which they come, a few at a time."""

    def __init__(
        self,
        load: Callable[[], Backends],
        *,
        cache_bytes: int,
        num_threads: int,
        step_limit_s: float,
    ) -> None:
        """Takes what finds the backends, which is called once. It may raise StartupError."""
        self.num_in_work = 0
        """Requests that were begun and not yet taken."""
        self._load_backends = load
        self._num_threads = num_threads
        self._grammars = GrammarCache(cache_bytes)
        self._guides: weakref.WeakSet[Guide] = weakref.WeakSet()
        self._markers: OrderedDict[str, EndMarker] = OrderedDict()
        self._backends: Backends | None = None
        self._loading = threading.Lock()
        self._wanted: queue.SimpleQueue[tuple[int, GenerationRequest] | _Order] = (
            queue.SimpleQueue()
        )
        self._prepared: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
        self._step_limit_s = step_limit_s
        self._makers: list[_Maker] = []
        self._left_behind: list[_Maker] = []
        self._leaving = threading.Lock()

    @property
    def num_guides(self) -> int:
        """How many guides something holds still, whatever became of their requests."""
        return len(self._guides)

    @property
    def is_overloaded(self) -> bool:
        """Whether too many threads are at first tokens of requests that have failed over them."""
        self._left_behind = [maker for maker in self._left_behind if maker.thread.is_alive()]
        return len(self._left_behind) >= MAX_LEFT_BEHIND

    def start(self, request_id: int, request: GenerationRequest) -> None:
        """Begins to prepare a request; `take_prepared` returns it some time."""
        self.num_in_work += 1
        self._wanted.put((request_id, request))
        self._hire()

    def warm_up(self) -> None:
        """Begins to load what the first guided request would have to wait for."""
        self._wanted.put(_Order.LOAD)
        self._hire()

    def close(self) -> None:
        """Lets the threads end behind what was asked for before."""
        for _ in self._makers:
            self._wanted.put(_Order.END)
        self._makers.clear()

    def take_prepared(self) -> list[Prepared]:
        """Returns what has been prepared since the last call, without waiting."""
        if not all(maker.thread.is_alive() for maker in self._makers):
            raise RuntimeError("a thread that prepares grammars has died")
        self._end_what_is_over_its_limit()
        prepared = []
        while not self._prepared.empty():
            prepared.append(self._prepared.get())
        self.num_in_work -= len(prepared)
        return prepared

    def _hire(self) -> None:
        if len(self._makers) < self._num_threads:
            maker = _Maker()
            maker.thread = threading.Thread(
                target=self._work, args=(maker,), name="guide maker", daemon=True
            )
            self._makers.append(maker)
            maker.thread.start()

    def _end_what_is_over_its_limit(self) -> None:
        with self._leaving:
            over = [maker for maker in self._makers if maker.is_over(self._step_limit_s)]
            for maker in over:
                assert maker.request_id is not None
                error = too_complex(self._step_limit_s)
                self._prepared.put(Prepared(request_id=maker.request_id, error=error))
                maker.request_id = maker.clock = None
                lower_to_leftovers(maker.thread)
                self._makers.remove(maker)
                self._left_behind.append(maker)
        for _ in over:
            self._hire()

    def _work(self, maker: "_Maker") -> None:
        while True:
            wanted = self._wanted.get()
            if wanted is _Order.END:
                return
            if wanted is _Order.LOAD:
                # Imports hold the interpreter, so that whoever computes steps would wait for a
                # thread that gives way to all others.
                self._load_all()
                continue
            # Threads that compile give way to those that compute steps.
            lower(threading.current_thread(), _NICENESS)
            request_id, request = wanted
            maker.request_id = request_id
            prepared = self._prepare(request_id, request, maker)
            with self._leaving:
                maker.clock = None
                if maker.request_id is None:
                    return
                maker.request_id = None
                self._prepared.put(prepared)
            # Or it would hold them until it gets the next.
            del wanted, request, prepared

    def _load_all(self) -> None:
        try:
            backends = self._load()
            for name in LOADED_IN_TURN:
                backends.build(name)
        except StartupError as error:
            _log.info("not every grammar can be enforced", cause=str(error))

    def _prepare(self, request_id: int, request: GenerationRequest, maker: "_Maker") -> Prepared:
        try:
            backends = self._load()
            guides = [self._make(request, backends) for _ in range(request.num_outputs)]
            self._catch_up(guides, request, maker)
        except GrammarError as error:
            return Prepared(request_id=request_id, error=without_frames(error))
        except StartupError as error:
            unsupported = AntiphonError(ErrorReason.UNSUPPORTED_CONSTRAINT, str(error))
            return Prepared(request_id=request_id, error=unsupported)
        return Prepared(request_id=request_id, guides=tuple(guides))

    def _load(self) -> Backends:
        with self._loading:
            if self._backends is None:
                self._backends = self._load_backends()
            return self._backends

    def _make(self, request: GenerationRequest, backends: Backends) -> Guide:
        grammar, thinking = request.grammar, request.thinking
        compiled = self._grammars.compile(grammar, backends) if grammar is not None else None
        guide = Guide(
            EndRules.of(request.stop, backends.vocabulary),
            matcher=compiled.matcher() if compiled is not None else None,
            backend=backends[grammar.backend] if grammar is not None else None,
            gate=self._gate(thinking, backends.vocabulary) if thinking is not None else None,
        )
        self._guides.add(guide)
        return guide

    def _catch_up(self, guides: list[Guide], request: GenerationRequest, maker: "_Maker") -> None:
        """Brings guides behind output that was generated before, and has first masks computed.

        Each token has the time that a token of a step has.
        """
        resumed = np.zeros(0, np.int32)
        if request.num_resumed_tokens:
            resumed = np.frombuffer(request.prompt, np.int32)[-request.num_resumed_tokens :]
        scratch = np.zeros((1, mask_words(self._load().vocabulary.size)), np.int32)
        for guide in guides:
            for token_id in resumed.tolist():
                maker.clock = TokenClock(maker.thread, guide)
                guide.accept(token_id)
            maker.clock = clock = TokenClock(maker.thread, guide)
            if guide.restricts:
                guide.fill(scratch)
            if clock.used_s() - clock.excused_s() > self._step_limit_s:
                raise too_complex(self._step_limit_s)

    def _gate(self, thinking: Thinking, vocabulary: Vocabulary) -> ThinkingGate:
        with self._loading:
            marker = self._markers.get(thinking.end_text)
            if marker is None:
                marker = EndMarker.of(thinking.end_text, vocabulary)
                self._markers[thinking.end_text] = marker
                if len(self._markers) > _NUM_MARKERS:
                    self._markers.popitem(last=False)
        if thinking.max_tokens is not None and not all(marker.spellings):
            raise GrammarError(
                ErrorReason.UNSUPPORTED_FEATURE,
                f"The model's tokens can't spell {thinking.end_text!r}, so its reasoning can't be "
                "ended after a number of tokens.",
            )
        return ThinkingGate(thinking, marker)


class _Maker:
    """A thread that makes guides, and what it is at."""

    def __init__(self) -> None:
        self.thread = threading.Thread()
        self.request_id: int | None = None
        """None where it rests, or is left behind."""
        self.clock: TokenClock | None = None
        """Of the token that it is at, if any."""

    def is_over(self, limit_s: float) -> bool:
        """Returns whether it is at a token for longer than that."""
        clock = self.clock
        if self.request_id is None or clock is None:
            return False
        return clock.is_over(limit_s, excused_s=clock.excused_s())


class GrammarCache:
    """Compiled grammars by what they are compiled of, within a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._changing = threading.Lock()

    def compile(self, grammar: Grammar, backends: Backends) -> CompiledGrammar:
        """Returns a grammar compiled, now or before. Raises GrammarError, and keeps nothing."""
        with self._changing:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                self._shrink()
                return known
        compiled = backends.compile(grammar)
        with self._changing:
            self._compiled[grammar] = compiled
            self._shrink()
        return compiled

    def _shrink(self) -> None:
        """Forgets what was used longest ago. Sizes are asked for again: grammars grow with use."""
        sizes = {
            grammar: len(grammar.text) + compiled.size_bytes
            for grammar, compiled in self._compiled.items()
        }
        num_bytes = sum(sizes.values())
        while num_bytes > self._max_bytes and self._compiled:
            grammar, _ = self._compiled.popitem(last=False)
            num_bytes -= sizes[grammar]
