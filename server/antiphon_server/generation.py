"""Generations: from a prompt's token ids to the events that tell of the outputs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

from antiphon.v1.inference_pb2 import GenerationCompleted, OutputFinished, ToolCallReady
from antiphon.v1.types_pb2 import (
    Delta,
    FinishReason,
    GenerationStarted,
    PromptPart,
    Timings,
    ToolCall,
    Usage,
)

from antiphon_engine.api import messages
from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import RequestNews, TakeTokens, take_nothing
from antiphon_server.generation_output import NewTokens, OutputPart, OutputRecord, cut
from antiphon_server.generation_run import Run
from antiphon_server.generation_spec import GenerationSpec, leave, new_progress
from antiphon_server.last_look import LastLook
from antiphon_server.prompt_report import PromptReport
from antiphon_server.request_facts import RequestFacts
from antiphon_server.served_model import ServedModel
from antiphon_server.telemetry.request_record import Stage
from antiphon_server.text_at_once import TextAtOnce
from antiphon_server.times import NS_PER_S

OutputEvent = Delta | ToolCallReady | OutputFinished
Event = GenerationStarted | PromptPart | OutputEvent | GenerationCompleted
T = TypeVar("T")
Listener = Callable[[Event], None]
Hold = Callable[[], Awaitable[None]]

_END_GRACE_S: Final = 1.0
"""How long the engine may take to confirm an end before that is told without it."""


class Generation:
    """One request that runs. Used from one event loop; its events are read by one task.

    1. `events` ends with GenerationCompleted or raises, unless it is closed before; so does `tell`.
    2. Once closed, nothing of it is left in the engine or in the counts, however it ended.
    """

    def __init__(self, spec: GenerationSpec, *, model: ServedModel, run: Run) -> None:
        """Takes over a submitted request."""
        self.outputs: Final = [OutputRecord(index=index) for index in range(spec.num_outputs)]
        self._spec = spec
        self._run = run
        self._latencies = model.latencies
        self._looks = [LastLook(model.checker, spec.constraint) for _ in self.outputs]
        self._report = PromptReport(spec.prompt_ids, spec.config, model.tokenizer)
        self._told_start = False
        self._told_resumed = not spec.resumed.token_ids
        self._progress = [new_progress(record, spec, model) for record in self.outputs]
        self._unconfirmed = set(range(spec.num_outputs))  # The engine has not told their end.
        self._facts = RequestFacts()
        self._early_reason: FinishReason.ValueType | None = None
        self._failure: AntiphonError | None = None
        self._closed = False
        self._wait_until: float | None = None  # On the loop's clock.
        self._patience: asyncio.Timeout | None = None
        self._tell_at_once: TakeTokens = take_nothing
        self._text_at_once: TextAtOnce | None = None
        self._late_calls: list[tuple[int, ToolCall]] = []  # Came where nothing can be waited for.
        self._timers = list(self._start_timers())

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=len(self._spec.prompt_ids),
            cached_prompt_tokens=self._facts.cached_prompt_tokens or 0,
            output_tokens=sum(len(record.token_ids) for record in self.outputs),
            reasoning_tokens=sum(record.num_reasoning_tokens for record in self.outputs),
        )

    @property
    def facts(self) -> RequestFacts:
        """What the engine has told of it as a whole so far."""
        return self._facts

    @property
    def stages(self) -> Sequence[Stage]:
        """What the front end did about the outputs."""
        of_looks = (stage for look in self._looks for stage in look.stages)
        return [*of_looks, *(stage for output in self.outputs for stage in output.stages)]

    @property
    def timings(self) -> Timings:
        """Where the time went so far; spans that have not ended are zero."""
        return self._facts.timings(self._spec.received_ns)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields what happens, as it happens; may be called once.

        What has come since the last read makes one delta an output. After `close` it just ends.

        Raises:
            AntiphonError: the request failed; TIMEOUT where its deadline passed.
        """
        try:
            while not self._finished:
                try:
                    news = await self._next_news()
                except AntiphonError:
                    if not self._told_resumed:
                        for event in [event async for event in self._beginning(None)]:
                            yield event
                    raise
                if self._closed:
                    return
                async with aclosing(self._beginning(news)) as beginning:
                    async for event in beginning:
                        yield event
                for index, part in cut(news, self._progress):
                    for event in await self._events_of(index, part):
                        yield event
            await self._settle()
            yield GenerationCompleted(usage=self.usage, timings=self.timings)
        finally:
            self.close()

    async def tell(
        self,
        listener: Listener,
        *,
        on_text: Callable[[str], None],
        before_call: Hold | None = None,
    ) -> None:
        """Tells what happens to the one output, as it happens, in place of `events`.

        A few new tokens are told without this task being woken, by the engine link itself.

        Args:
            listener: Gets each event.
            on_text: Gets the text in place of a delta that would have nothing else, of the answer.
            before_call: Awaited before a complete call is told; nothing is told meanwhile.
        """
        self.tell_at_once(listener)
        if self._progress[0].tells_text_only:
            self._text_at_once = TextAtOnce(self._progress[0], self._facts, on_text)
            self._tell_at_once = self._text_at_once.take
        async with aclosing(self.events()) as events:
            async for event in events:
                if before_call is not None and isinstance(event, ToolCallReady):
                    await before_call()
                listener(event)

    def tell_at_once(
        self, listener: Callable[[Delta], None], *, may_take: Callable[[], bool] = lambda: True
    ) -> None:
        """Has a few new tokens told while a reader of `events` waits, instead of yielded to it.

        Args:
            listener: Gets what `events` would yield, called by the engine link.
            may_take: Whether it takes anything now; what it doesn't is yielded.
        """
        self._tell_at_once = partial(self._take_at_once, listener, may_take)

    def cancel(self) -> None:
        """Asks for an early end: unfinished outputs finish as CANCELLED. Idempotent; any time."""
        self._end_early(FinishReason.FINISH_REASON_CANCELLED)

    def fail(self, error: AntiphonError) -> None:
        """Ends the request at once: `events` raises the error, unless all outputs are finished.

        Idempotent; any time, whether or not anyone reads the events now.
        """
        if self._closed or self._failure is not None:
            return
        self._failure = error
        self._end_text_at_once()
        self._run.ticket.release()
        self._run.stream.close()
        self._wait_at_most_until(asyncio.get_running_loop().time())

    def hold(self) -> None:
        """Asks the engine to stop working on it and to lend its memory to others. Idempotent."""
        self._run.stream.hold()

    def release(self) -> None:
        """Asks the engine to go on with it. Idempotent."""
        self._run.stream.release()

    def close(self) -> None:
        """Lets go of the request, and ends it in the engine where it runs. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._end_text_at_once()
        for timer in self._timers:
            timer.cancel()
        self._note_latencies()
        self._run.ticket.release()
        leave(self._spec, self._run.place, self.usage.prompt_tokens + self.usage.output_tokens)
        self._run.stream.close()
        self._wait_at_most_until(asyncio.get_running_loop().time())

    def _end_text_at_once(self) -> None:
        if self._text_at_once is not None:
            self._text_at_once.is_open = False

    def _note_latencies(self) -> None:
        facts = self._facts
        if facts.first_token_ns:
            self._latencies.note(
                time_to_first_token_ns=facts.first_token_ns - self._spec.received_ns,
                decode_ns=facts.last_token_ns - facts.first_token_ns,
                num_tokens=max(len(record.token_ids) for record in self.outputs)
                - len(self._spec.resumed.token_ids),
            )

    @property
    def _finished(self) -> bool:
        return all(record.finished for record in self.outputs)

    def _start_timers(self) -> Iterator[asyncio.TimerHandle]:
        loop, now_ns = asyncio.get_running_loop(), self._run.clock_ns()
        if self._spec.deadline_ns is not None:
            yield loop.call_later((self._spec.deadline_ns - now_ns) / NS_PER_S, self._time_out)
        limit_s = self._spec.config.time_limit_s
        if limit_s is not None:
            spent_s = (now_ns - self._spec.received_ns) / NS_PER_S
            reason = FinishReason.FINISH_REASON_TIME_LIMIT
            yield loop.call_later(limit_s - spent_s, self._end_early, reason)

    def _time_out(self) -> None:
        """Fails the request at its deadline, whether or not anyone reads its events now."""
        spent_s = (self._run.clock_ns() - self._spec.received_ns) / NS_PER_S
        where = (
            f"{self.usage.output_tokens} output tokens were delivered"
            if self._facts.first_step_ns
            else "it still waited for the engine"
        )
        self.fail(
            AntiphonError(
                ErrorReason.TIMEOUT,
                f"the deadline passed {spent_s:.3f} s after the request was received; {where}",
            )
        )

    def _end_early(self, reason: "FinishReason.ValueType") -> None:
        if self._closed or self._finished or self._early_reason is not None:
            return
        self._early_reason = reason
        self._run.stream.cancel()
        self._wait_at_most_until(asyncio.get_running_loop().time() + _END_GRACE_S)

    def _wait_at_most_until(self, instant: float) -> None:
        """Bounds the wait for news, also the one that has begun."""
        self._wait_until = instant
        if self._patience is not None:
            self._patience.reschedule(instant)

    async def _next_news(self) -> RequestNews | None:
        """Waits for news and notes what they say; None where waiting has become pointless."""
        news = None
        if self._failure is None and not self._closed:
            try:
                async with asyncio.timeout_at(self._wait_until) as self._patience:
                    news = await self._run.stream.next(self._tell_at_once)
            except TimeoutError:
                pass
            finally:
                self._patience = None
        if self._failure is not None:
            raise self._failure
        if news is not None:
            self._note(news)
        return news

    def _note(self, news: RequestNews) -> None:
        if news.cached_prompt_tokens is not None:
            self._run.ticket.start(news.first_step_ns - self._spec.received_ns)
        self._facts.note(news)
        for index, new in news.outputs.items():
            if new.ended is not None:
                self._unconfirmed.discard(index)

    def _started(self) -> GenerationStarted:
        return GenerationStarted(
            prompt_tokens=len(self._spec.prompt_ids),
            cached_prompt_tokens=self._facts.cached_prompt_tokens or 0,
            seed=self._spec.config.sampling.seed,
        )

    async def _beginning(self, news: RequestNews | None) -> AsyncGenerator[Event, None]:
        """Yields what is due before new output: the start, the prompt, output from before."""
        if not self._told_start:
            self._told_start = True
            yield self._started()
            for part in self._report.at_start():
                yield part
        if news is not None and news.prompt_logprobs:
            for piece in self._report.cut(news.prompt_logprobs):
                take = partial(self._report.parts_of, piece)
                for part in await self._off_loop(take, is_burst=self._report.is_burst(piece)):
                    yield part
        if not self._told_resumed and (self._report.is_complete or news is None or news.outputs):
            self._told_resumed = True
            for tokens in self._spec.resumed.split(self._progress[0].max_take_tokens):
                for event in await self._events_of(0, tokens):
                    yield event

    def _take_at_once(
        self,
        listener: Callable[[Delta], None],
        may_take: Callable[[], bool],
        news: RequestNews,
    ) -> bool:
        """Tells of new tokens where that is quickly done and can't end an output."""
        if self._failure is not None or self._closed or not may_take():
            return False
        progress = self._progress
        for index, new in news.outputs.items():
            if len(new.token_ids) > progress[index].max_quick_tokens:
                return False
        self._facts.note_tokens(news)
        for index, new in news.outputs.items():
            if not self.outputs[index].finished:
                for part in progress[index].take(new):
                    if isinstance(part, Delta):
                        listener(part)
                    else:
                        self._late_calls.append((index, part))
        return True

    async def _events_of(self, index: int, part: NewTokens) -> list[OutputEvent]:
        """Returns what new tokens of an output make, with each call behind its text.

        Raises:
            AntiphonError: CONSTRAINT_VIOLATED.
        """
        record, look = self.outputs[index], self._looks[index]
        if record.finished:
            return []
        events: list[OutputEvent] = []
        for told in [*self._take_late_calls(index), *await self._parts_of(index, part)]:
            if isinstance(told, ToolCall):
                await look.at_call(told)
                events.append(ToolCallReady(output_index=index, tool_call=told))
            else:
                events.append(told)
        if record.finished:
            await look.at_end(record, self._progress[index].whole_answer)
            events.append(self._end_of(index))
        return events

    def _take_late_calls(self, index: int) -> list[ToolCall]:
        """Returns calls that came where nothing can be waited for."""
        late = [call for of_index, call in self._late_calls if of_index == index]
        self._late_calls = [entry for entry in self._late_calls if entry[0] != index]
        return late

    async def _parts_of(self, index: int, part: NewTokens) -> list[OutputPart]:
        is_burst = self._progress[index].is_burst(part)
        return await self._off_loop(self._taking(index, part), is_burst=is_burst)

    async def _off_loop(self, take: Callable[[], list[T]], *, is_burst: bool) -> list[T]:
        """Works bursts out beside the event loop, where there is room for that."""
        if is_burst and self._run.offload.has_room:
            return await self._run.offload.run(take)
        return take()

    def _taking(self, index: int, part: NewTokens) -> Callable[[], list[OutputPart]]:
        progress = self._progress[index]
        if part.ended is messages.FinishReason.CANCELLED:
            reason = self._early_reason or FinishReason.FINISH_REASON_CANCELLED
            return partial(progress.take_last, part, reason)
        return partial(progress.take, part)

    def _end_of(self, index: int) -> OutputFinished:
        """Returns the end of an output, and tells the engine where that does not know of it."""
        record = self.outputs[index]
        if index in self._unconfirmed:
            self._run.stream.finish_output(index, len(record.token_ids))
        return OutputFinished(
            output_index=index,
            finish_reason=record.finish_reason,
            stop_match=record.stop_match,
        )

    async def _settle(self) -> None:
        """Gives the engine a moment to confirm ends that it was told of, for its own figures."""
        if self._unconfirmed and self._early_reason is None:
            self._wait_at_most_until(asyncio.get_running_loop().time() + _END_GRACE_S)
        # All outputs are finished: a failure can't change them any more.
        with contextlib.suppress(AntiphonError):
            while self._unconfirmed and await self._next_news() is not None:
                pass
