"""A request to the engine without a model: its stream, and what tests ask about it."""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.handle import (
    MAX_UNREAD_BYTES,
    RequestNews,
    TakeTokens,
    max_unread_tokens,
    take_nothing,
)
from antiphon_engine.api.messages import FinishReason, GenerationRequest, StopParams
from antiphon_engine.api.request_times import RequestTimes
from support.fake_times import one_chunk

Script = Callable[[GenerationRequest, int], Iterable[int]]
"""The token ids of output i of a request. When they run out, an end id follows, or they repeat."""


class Stepper(Protocol):
    """What a request asks of its engine."""

    num_late_tokens: int

    def soon(self, function: Callable[["FakeRequest"], None], stream: "FakeRequest") -> None:
        """Calls `function` in a later turn of the event loop."""

    def settle(self, stream: "FakeRequest") -> None:
        """Carries out what was asked to end."""

    def say_late(self, stream: "FakeRequest") -> None:
        """Gives what was under way when the request was held."""

    def go_on(self, stream: "FakeRequest") -> None:
        """Goes on with a request that was held."""


@dataclass(slots=True)
class FakeOutput:
    script: Iterator[int]
    token_ids: list[int] = field(default_factory=list)
    ended: FinishReason | None = None
    finish_asked: bool = False
    num_late_tokens: int = 0

    def draw(self, stop: StopParams) -> int:
        """Returns the next token that counts."""
        token_id = next(self.script)
        enders = {*stop.end_ids, *stop.stop_ids}
        while len(self.token_ids) < stop.min_output_tokens and token_id in enders:
            token_id = next((t for t in self.script if t not in enders), 0)
        return token_id


class FakeRequest:
    """A request that was submitted: its stream, and what tests ask about it."""

    def __init__(self, engine: Stepper, request: GenerationRequest, script: Script) -> None:
        self.request = request
        self.prompt = list(array("i", request.prompt))
        """With output from before, as the engine gets it."""
        num_resumed = request.num_resumed_tokens
        self.resumed = self.prompt[len(self.prompt) - num_resumed :]
        asked = replace(
            request, prompt=request.prompt[: -4 * num_resumed or None], num_resumed_tokens=0
        )
        self.outputs = [FakeOutput(_endless(script, asked, i)) for i in range(request.num_outputs)]
        for token_id in self.resumed:
            said = self.outputs[0].draw(request.stop)
            assert said == token_id, "an output goes on behind what was generated of it"
            self.outputs[0].token_ids.append(token_id)
        self.num_steps = 0
        self.num_cached = 0
        self.arrival_ns = time.monotonic_ns()
        self.start_ns = 0
        self.first_token_ns = 0
        self.next_told = request.first_untold_position
        self.cancel_asked = False
        self.max_unread_tokens = max_unread_tokens(request, MAX_UNREAD_BYTES)
        self._hold_asked = False
        self._is_full = False
        self.closed = False
        self.error: AntiphonError | None = None
        self.news: RequestNews | None = None
        self._engine = engine
        self._wake = asyncio.Event()

    @property
    def prompt_size(self) -> int:
        """Tokens of the prompt without output from before."""
        return len(self.prompt) - len(self.resumed)

    @property
    def times(self) -> RequestTimes:
        """When what happened to it."""
        return one_chunk(
            arrival_ns=self.arrival_ns,
            start_ns=self.start_ns,
            end_ns=self.first_token_ns,
            num_reused=self.num_cached,
            num_computed=len(self.prompt) - self.num_cached,
            num_steps=self.num_steps,
        )

    @property
    def held(self) -> bool:
        """Whether it rests: its reader asked for that, or has too much unread."""
        return self._hold_asked or self._is_full

    @property
    def ended(self) -> bool:
        return self.error is not None or all(output.ended for output in self.outputs)

    async def next(self, take: TakeTokens = take_nothing) -> RequestNews:
        while True:
            if self.news is not None:
                news, self.news = self.news, None
                if self._is_full:
                    self._is_full = False
                    self._engine.soon(self._engine.go_on, self)
                if not (_has_tokens_only(news) and take(news)):
                    return news
            if self.error is not None:
                raise self.error
            self._wake.clear()
            await self._wake.wait()

    async def wait_ended(self) -> None:
        """Waits until the engine has nothing of it any more."""
        while not self.ended:  # noqa: ASYNC110 - looks at each turn of the loop
            await asyncio.sleep(0)

    def finish_output(self, output_index: int, keep_tokens: int) -> None:
        output = self.outputs[output_index]
        assert keep_tokens <= len(output.token_ids)
        if output.ended is None:
            output.finish_asked = True
            output.num_late_tokens = self._engine.num_late_tokens
            self._engine.soon(self._engine.settle, self)

    def cancel(self) -> None:
        if not self.cancel_asked and not self.ended:
            self.cancel_asked = True
            self._engine.soon(self._engine.settle, self)

    def hold(self) -> None:
        if not self.held and not self.ended:
            self._engine.soon(self._engine.say_late, self)
        self._hold_asked = True

    def release(self) -> None:
        if self._hold_asked:
            self._hold_asked = False
            self._engine.soon(self._engine.go_on, self)

    def close(self) -> None:
        self.closed = True
        self.cancel()

    def tell(self, change: Callable[[RequestNews], None]) -> None:
        """Adds to the news and wakes whoever waits for it."""
        self.news = self.news or RequestNews()
        change(self.news)
        num_unread = (len(output.token_ids) for output in self.news.outputs.values())
        num_bytes = sum(part.size_bytes for part in self.news.prompt_logprobs)
        self._is_full = (
            max(num_unread, default=0) >= self.max_unread_tokens or num_bytes >= MAX_UNREAD_BYTES
        )
        self._wake.set()

    def fail(self, error: AntiphonError) -> None:
        if not self.ended:
            self.error = error
            self._wake.set()


def _has_tokens_only(news: RequestNews) -> bool:
    is_start = news.cached_prompt_tokens is not None
    is_more = is_start or bool(news.prompt_logprobs)
    return not is_more and not any(output.ended for output in news.outputs.values())


def _endless(script: Script, request: GenerationRequest, output_index: int) -> Iterator[int]:
    yield from script(request, output_index)
    if request.stop.end_ids:
        yield request.stop.end_ids[0]
    while True:
        yield from script(request, output_index) or (0,)
