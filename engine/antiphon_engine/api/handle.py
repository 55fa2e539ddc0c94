"""The engine as the front end sees it: the one seam between the two.

`link.EngineLink` implements it over a socket; tests have a fake.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from antiphon_engine.api.messages import (
    CoreStats,
    FinishReason,
    GenerationRequest,
    Ready,
    Scope,
    TokenLogprobs,
)
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_engine.api.request_times import RequestTimes

MAX_UNREAD_BYTES: Final = 1 << 20
"""What the news of a request may take until they are read, where nothing else is said."""

_TOKEN_BYTES: Final = 64
_LOGPROBS_BYTES: Final = 400
_CANDIDATE_BYTES: Final = 16


def max_unread_tokens(request: GenerationRequest, max_unread_bytes: int) -> int:
    """Returns how many tokens of an output may be unread for all to take about so much."""
    token_bytes = _TOKEN_BYTES
    if request.top_logprobs is not None:
        token_bytes += _LOGPROBS_BYTES + _CANDIDATE_BYTES * request.top_logprobs
    return max(1, max_unread_bytes // (token_bytes * request.num_outputs))


class EngineState(enum.Enum):
    """What the engine can do now."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    """It has given no sign of life for longer than the limit."""
    DOWN = "down"


@dataclass(slots=True)
class OutputNews:
    """What came of one output since the last read, in order."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One entry a token where they were asked for, else empty."""
    ended: FinishReason | None = None
    num_steps: int = 0
    """With `ended`."""
    num_preemptions: int = 0
    """With `ended`."""
    times: RequestTimes | None = None
    """With `ended`, of output 0 where the engine's core had the request."""


@dataclass(slots=True)
class RequestNews:
    """What came of a request since the last read. Joined: a slow reader gets fewer, larger ones."""

    cached_prompt_tokens: int | None = None
    """Set once, in the first news."""
    first_step_ns: int = 0
    """When the first step began, CLOCK_MONOTONIC; with `cached_prompt_tokens`."""
    first_token_ns: int = 0
    """When the first token came; in the news that holds it."""
    last_token_ns: int = 0
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """What came of the prompt's, in order and without gaps; before any token."""
    outputs: dict[int, OutputNews] = field(default_factory=dict)
    """By output index; those without news are absent."""

    def clear_tokens(self) -> None:
        """Makes news that hold nothing of those that hold tokens only."""
        self.first_token_ns = 0
        outputs = self.outputs
        if len(outputs) > 1:
            outputs.clear()
        for output in outputs.values():
            output.token_ids.clear()
            if output.logprobs:
                output.logprobs.clear()


TakeTokens = Callable[[RequestNews], bool]
"""Takes in news that hold tokens and neither a start nor an end, or leaves them as they are.

The news are its own for the length of the call only.
"""


def take_nothing(news: RequestNews) -> bool:
    """The TakeTokens of a reader that gets all there is from `next`."""
    del news
    return False


class RequestStream(Protocol):
    """The news of one request. Used by one task at a time."""

    async def next(self, take: TakeTokens = take_nothing) -> RequestNews:
        """Waits until there is news and returns all of it.

        Args:
            take: Is offered new tokens while the wait lasts, as soon as they come and without a
                task being woken; true: it has taken them in, and the wait goes on. What it raises
                is raised here.

        Raises:
            AntiphonError: the request failed (NEVER_FITS, ENGINE_DOWN, INTERNAL, …); the last news.
        """

    def finish_output(self, output_index: int, keep_tokens: int) -> None:
        """Ends one output; its `ended` comes as FINISHED_BY_CALLER and no more tokens follow it."""

    def cancel(self) -> None:
        """Asks for an early end: outputs that have not ended then end as CANCELLED. Idempotent."""

    def hold(self) -> None:
        """Asks the engine to stop working on the request, and to lend its memory to others.

        A few tokens that are under way may still come. Time goes on: it is still ended by `cancel`
        and `finish_output`. Idempotent, as `release`; neither ever waits.
        """

    def release(self) -> None:
        """Asks the engine to go on with a request that is held, with the same tokens."""

    def close(self) -> None:
        """Lets go of the request; cancels it where it has not ended. Idempotent; never waits."""


class EngineHandle(Protocol):
    """One engine. All calls come from the front end's event loop."""

    @property
    def state(self) -> EngineState:
        """What it can do now."""

    @property
    def facts(self) -> Ready | None:
        """What it said of itself when it became ready last; None before the first time."""

    def on_state_change(self, callback: Callable[[EngineState], None]) -> None:
        """Calls `callback` on the event loop at every change of state from now on."""

    def submit(
        self, request: GenerationRequest, *, max_unread_bytes: int = MAX_UNREAD_BYTES
    ) -> RequestStream:
        """Hands a request over and returns its stream at once.

        While more of its news than `max_unread_bytes` is unread, about, the request is held.

        Raises:
            AntiphonError: ENGINE_DOWN where it is not ready.
        """

    async def stats(self) -> CoreStats:
        """Reads the counters. Raises AntiphonError, ENGINE_DOWN, where there is no answer."""

    async def flush_prefix_cache(self) -> int:
        """Forgets cached blocks that nobody uses; returns how many. Raises like `stats`."""

    async def match_prefix(self, scope: Scope, tokens: bytes) -> int:
        """Returns how many leading tokens (int32) are cached. Raises like `stats`."""

    def close_session(self, session: int) -> None:
        """Hints that nothing more comes of a session: what only it has cached goes first.

        This and the next two never wait and never fail; an engine that is down or behind forgets.
        """

    def fork_session(self, session: int, new_session: int) -> None:
        """Hints that `new_session` goes on where `session` stands."""

    def rewind_session(self, session: int, num_tokens: int) -> None:
        """Hints that a session goes on behind its first `num_tokens` tokens."""

    async def close(self) -> None:
        """Ends the engine and waits for it, a few seconds at most."""
