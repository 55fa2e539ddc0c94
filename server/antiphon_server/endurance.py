"""Requests that outlive their engine: where it dies, they go on in the next one."""

import asyncio
import contextlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import (
    EngineHandle,
    EngineState,
    OutputNews,
    RequestNews,
    RequestStream,
    TakeTokens,
    take_nothing,
)
from antiphon_engine.api.messages import FinishReason, GenerationRequest
from antiphon_server.telemetry.request_record import RequestEventKind

PROGRESS_TOKENS: Final = 16
"""An attempt that brings so many tokens is no reason to give up."""
SUSPECT_ATTEMPTS: Final = 2
"""Behind so many attempts that brought nothing, a request may be what the engine dies of."""
_RETRY_DELAY_S: Final = 0.2


class Attempts:
    """How often work on a request was begun in a row without getting on."""

    __slots__ = (
        "_most",
        "_num_tokens_before",
        "num",
    )

    def __init__(self, *, most: int, num: int = 0) -> None:
        """Takes over the number of earlier ones."""
        self.num = num
        self._most = most
        self._num_tokens_before = 0

    def check(self) -> None:
        """Checks that one more may be begun. Raises AntiphonError, INTERNAL."""
        if self.num >= self._most:
            raise AntiphonError(
                ErrorReason.INTERNAL,
                f"The server or its engine ended {self.num} times while it worked on the turn,"
                " so it is given up. Its log tells more.",
                metadata={"attempts": str(self.num), "limit": str(self._most)},
            )

    def begin(self, num_tokens: int) -> None:
        """Counts one more, which stands on so many output tokens."""
        self.num += 1
        self._num_tokens_before = num_tokens

    def withdraw(self) -> None:
        """Takes one back that was none: it was refused."""
        self.num -= 1

    def note_progress(self, num_tokens: int) -> None:
        """Says how many output tokens there are now."""
        if num_tokens - self._num_tokens_before >= PROGRESS_TOKENS:
            self.num = 1
            self._num_tokens_before = num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """How long a request waits for another engine, and how often."""

    attempts: Attempts
    wait_s: float
    was_admitted: bool = False
    """By a server before this one: it is not turned away because others wait too."""
    note: Callable[[RequestEventKind], None] = lambda kind: None
    """Is told as the request loses its engine, and as it goes on in another one."""


class EngineReadiness:
    """Lets any number wait for an engine, with one callback."""

    def __init__(self, engine: EngineHandle) -> None:
        self.probation: Final = asyncio.Lock()
        """Held by the one request at a time that is tried although it may be what engines die of:
        the others of its kind wait, so that its deaths don't count as theirs."""
        self._ready = asyncio.Event()
        engine.on_state_change(self._note)
        self._note(engine.state)

    async def wait(self) -> None:
        """Waits until the engine takes requests."""
        await self._ready.wait()

    def _note(self, state: EngineState) -> None:
        if state is EngineState.READY:
            self._ready.set()
        else:
            self._ready.clear()


class EnduringStream:
    """The RequestStream of a request with one output that goes on in the next engine.

    Its news are those of a single engine that never died, but for the time that passed. Tokens that
    an engine made and did not tell are made again, and are the same.
    """

    __slots__ = (
        "_attempts",
        "_ending",
        "_endurance",
        "_engine",
        "_give_up_at",
        "_held",
        "_new_ids",
        "_num_new_before",
        "_num_steps",
        "_num_told_positions",
        "_on_probation",
        "_readiness",
        "_request",
        "_stream",
        "_take",
        "_told_start",
        "_was_lost",
        "_was_refused",
    )

    def __init__(
        self,
        request: GenerationRequest,
        *,
        engine: EngineHandle,
        readiness: EngineReadiness,
        endurance: Endurance,
    ) -> None:
        """Submits the request at once where the engine is ready, else in `next`.

        Raises:
            AntiphonError: OVERLOADED; INTERNAL, there were too many attempts.
        """
        assert request.num_outputs == 1
        self._request = request
        self._engine = engine
        self._readiness = readiness
        self._endurance = endurance
        self._attempts = endurance.attempts
        self._take: TakeTokens = take_nothing
        self._new_ids = array("i")  # All that was told.
        self._num_told_positions = request.num_told_positions  # Of the prompt.
        self._stream: RequestStream | None = None
        self._told_start = False
        self._num_steps = 0  # Of earlier engines, as far as their tokens tell.
        self._num_new_before = 0
        self._give_up_at: float | None = None  # On the loop's clock.
        self._held = False
        self._was_refused = False
        self._was_lost = False
        self._ending = False
        self._on_probation = False
        if engine.state is EngineState.READY and not self._is_suspect:
            self._try_to_submit()

    async def next(self, take: TakeTokens = take_nothing) -> RequestNews:
        """See RequestStream."""
        self._take = take
        while True:
            if self._stream is None:
                if self._ending:
                    return _cancelled_news()
                await self._take_up()
            assert self._stream is not None
            try:
                news = await self._stream.next(self._take_and_note)
            except AntiphonError as error:
                if not self._outlives(error):
                    raise
                self._part(was_refused=error.reason is ErrorReason.OVERLOADED)
            else:
                return self._joined(news)

    def _take_and_note(self, news: RequestNews) -> bool:
        """The TakeTokens of the engine's own stream."""
        if not self._take(news):
            return False
        if self._attempts.num > 1 or self._on_probation:
            self._note_tokens(news.outputs[0])
        else:
            self._new_ids.extend(news.outputs[0].token_ids)
        return True

    def finish_output(self, output_index: int, keep_tokens: int) -> None:
        """See RequestStream."""
        self._ending = True
        if self._stream is not None:
            self._stream.finish_output(output_index, keep_tokens)

    def cancel(self) -> None:
        """See RequestStream."""
        self._ending = True
        if self._stream is not None:
            self._stream.cancel()

    def hold(self) -> None:
        """See RequestStream."""
        self._held = True
        self._end_probation()
        if self._stream is not None:
            self._stream.hold()

    def release(self) -> None:
        """See RequestStream."""
        self._held = False
        if self._stream is not None:
            self._stream.release()

    def close(self) -> None:
        """See RequestStream."""
        self._ending = True
        self._end_probation()
        if self._stream is not None:
            self._stream.close()

    @property
    def _num_tokens(self) -> int:
        return self._request.num_resumed_tokens + len(self._new_ids)

    @property
    def _is_suspect(self) -> bool:
        return self._attempts.num >= SUSPECT_ATTEMPTS

    def _try_to_submit(self) -> None:
        """Submits what is left of the request, unless the engine doesn't take it now."""
        attempts = self._attempts
        attempts.check()
        try:
            stream = self._engine.submit(
                self._request.resumed_behind(
                    self._new_ids, num_told_positions=self._num_told_positions
                )
            )
        except AntiphonError as error:
            if not self._outlives(error):
                raise
            self._was_refused = True
            return
        attempts.begin(self._num_tokens)
        self._stream = stream
        if self._was_lost:
            self._was_lost = False
            self._endurance.note(RequestEventKind.RESUMED)
        self._num_new_before = len(self._new_ids)
        if self._held:
            stream.hold()

    async def _take_up(self) -> None:
        """Submits the request once the engine is ready.

        Raises:
            AntiphonError: ENGINE_DOWN, it has not been within the limit; INTERNAL.
        """
        if self._is_suspect:
            await self._begin_probation()
        loop = asyncio.get_running_loop()
        if self._give_up_at is None:
            self._give_up_at = loop.time() + self._endurance.wait_s
        try:
            async with asyncio.timeout_at(self._give_up_at):
                while self._stream is None:
                    if self._was_refused:
                        await asyncio.sleep(_RETRY_DELAY_S)
                    await self._readiness.wait()
                    self._try_to_submit()
        except TimeoutError:
            raise AntiphonError(
                ErrorReason.ENGINE_DOWN,
                f"The engine has not come back within {self._endurance.wait_s:g} s; retry later.",
                retry_delay_s=2.0,
            ) from None

    async def _begin_probation(self) -> None:
        """Waits until no other suspect is tried; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._endurance.wait_s):
                await self._readiness.probation.acquire()
                self._on_probation = True

    def _end_probation(self) -> None:
        if self._on_probation:
            self._on_probation = False
            self._readiness.probation.release()

    def _outlives(self, error: AntiphonError) -> bool:
        if error.reason is ErrorReason.OVERLOADED:
            # It has been let in; so many others that come back at once don't change that.
            return self._endurance.was_admitted or self._attempts.num > 1
        return error.reason is ErrorReason.ENGINE_DOWN

    def _part(self, *, was_refused: bool) -> None:
        """Lets go of an engine that has died, or had no room."""
        assert self._stream is not None
        self._was_refused = was_refused
        if was_refused:
            self._attempts.withdraw()
        else:
            self._give_up_at = None  # Each outage has the whole wait.
            self._was_lost = True
            self._endurance.note(RequestEventKind.ENGINE_LOST)
        self._stream.close()
        self._stream = None
        self._end_probation()
        self._num_steps += len(self._new_ids) - self._num_new_before

    def _joined(self, news: RequestNews) -> RequestNews:
        """Notes what an engine tells, and makes it news of a request that is one."""
        if news.cached_prompt_tokens is not None:
            if self._told_start:
                news.cached_prompt_tokens = None
            self._told_start = True
        self._give_up_at = None
        for part in news.prompt_logprobs:
            self._num_told_positions = part.first_position + part.num_positions
        output = news.outputs.get(0)
        if output is not None:
            self._note_tokens(output)
            if output.ended is not None:
                output.num_steps += self._num_steps
        return news

    def _note_tokens(self, output: OutputNews) -> None:
        """Notes what came of the output."""
        self._new_ids.extend(output.token_ids)
        if self._attempts.num > 1:
            self._attempts.note_progress(self._num_tokens)
        if self._on_probation and (output.ended is not None or not self._is_suspect):
            self._end_probation()


def _cancelled_news() -> RequestNews:
    """The end of a request that no engine has."""
    return RequestNews(outputs={0: OutputNews(ended=FinishReason.CANCELLED)})
