"""Generations: from a prompt's token ids to the events that tell of the outputs."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from antiphon.v1.inference_pb2 import GenerationCompleted, OutputFinished
from antiphon.v1.types_pb2 import Delta, FinishReason, GenerationStarted, Timings, Usage

from antiphon_engine.api import messages
from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import MAX_UNREAD_BYTES, RequestNews, RequestStream
from antiphon_server.access.quotas import Place
from antiphon_server.access.tenancy import Tenancy, unlimited_tenancy
from antiphon_server.admission import Admission, Ticket
from antiphon_server.endurance import EnduringStream, EngineReadiness
from antiphon_server.generation_output import NewTokens, OutputRecord
from antiphon_server.generation_spec import GenerationSpec, new_progress, to_request
from antiphon_server.offload import Offload
from antiphon_server.request_facts import RequestFacts
from antiphon_server.served_model import ServedModel

Event = GenerationStarted | Delta | OutputFinished | GenerationCompleted

_END_GRACE_S: Final = 1.0
"""How long the engine may take to confirm an end before that is told without it."""
_BURST_ENTRIES: Final = 512
"""Tokens and their log-probabilities, beyond which work on them leaves the event loop."""
_NANOS: Final = 1_000_000_000


class Generator:
    """Starts the generations of one model. Used from one event loop."""

    def __init__(
        self,
        model: ServedModel,
        *,
        offload: Offload,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        tenancy: Tenancy | None = None,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
    ) -> None:
        """Sets what it works with.

        Args:
            model: What generates.
            offload: Where work on large answers runs.
            clock_ns: The monotonic clock.
            tenancy: What keeps tenants apart; None: nobody has quotas.
            max_unread_bytes: What may come of a request, about, before it is held for its reader.
        """
        self._max_unread_bytes = max_unread_bytes
        self._model = model
        self._tenancy = tenancy or unlimited_tenancy()
        self._offload = offload
        self._clock_ns = clock_ns
        self.readiness: Final = EngineReadiness(model.engine)
        self.admission: Final = Admission(
            engine=model.engine,
            max_queued_requests=model.limits.max_queued_requests,
            clock_ns=clock_ns,
        )

    def check(self, tenant: str, *, deadline_ns: int | None) -> None:
        """Checks that a request could start, before work is put into it. Raises like `start`."""
        self.admission.check(deadline_ns=deadline_ns)
        self._tenancy.quotas.check(tenant)

    def start(self, spec: GenerationSpec) -> "Generation":
        """Admits and submits a request; whoever gets its generation has to close that.

        Raises:
            AntiphonError: ENGINE_DOWN, OVERLOADED, QUOTA_EXCEEDED or TIMEOUT; the engine has not
                seen it then. INTERNAL where it outlived too many.
        """
        with contextlib.ExitStack() as undo:
            ticket = self._admit(spec)
            undo.callback(ticket.release)
            place = spec.place or self._tenancy.quotas.enter(spec.scope.tenant)
            undo.callback(_leave, spec, place, 0)
            place.reserve(
                prompt_tokens=len(spec.prompt_ids),
                output_tokens=spec.num_outputs * spec.config.stop.max_output_tokens,
            )
            stream = self._submit(spec)
            undo.pop_all()
        run = _Run(
            stream=stream,
            ticket=ticket,
            place=place,
            offload=self._offload,
            clock_ns=self._clock_ns,
        )
        return Generation(spec, model=self._model, run=run)

    def _admit(self, spec: GenerationSpec) -> Ticket:
        endurance = spec.endurance
        if endurance is not None and endurance.was_admitted:
            return self.admission.admit_again()
        outlives_engine = endurance is not None
        return self.admission.admit(deadline_ns=spec.deadline_ns, outlives_engine=outlives_engine)

    def _submit(self, spec: GenerationSpec) -> RequestStream:
        scope = self._tenancy.scopes.engine_scope(spec.scope)
        engine, request = self._model.engine, to_request(spec, scope)
        if spec.endurance is None:
            return engine.submit(request, max_unread_bytes=self._max_unread_bytes)
        return EnduringStream(
            request, engine=engine, readiness=self.readiness, endurance=spec.endurance
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a generation lives on."""

    stream: RequestStream
    ticket: Ticket
    place: Place
    offload: Offload
    clock_ns: Callable[[], int]


class Generation:
    """One request that runs. Used from one event loop; its events are read by one task.

    1. `events` ends with GenerationCompleted or raises, unless it is closed before.
    2. Once closed, nothing of it is left in the engine or in the counts, however it ended.
    """

    def __init__(self, spec: GenerationSpec, *, model: ServedModel, run: _Run) -> None:
        """Takes over a submitted request."""
        self.outputs: Final = [OutputRecord(index=index) for index in range(spec.num_outputs)]
        self._spec = spec
        self._run = run
        self._progress = [new_progress(record, spec, model) for record in self.outputs]
        self._unconfirmed = set(range(spec.num_outputs))  # The engine has not told their end.
        self._facts = RequestFacts()
        self._early_reason: FinishReason.ValueType | None = None
        self._failure: AntiphonError | None = None
        self._closed = False
        self._wait_until: float | None = None  # On the loop's clock.
        self._patience: asyncio.Timeout | None = None
        self._timers = list(self._start_timers())

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=len(self._spec.prompt_ids),
            cached_prompt_tokens=self._facts.cached_prompt_tokens or 0,
            output_tokens=sum(len(record.token_ids) for record in self.outputs),
        )

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
            told_start = False
            while not self._finished:
                try:
                    news = await self._next_news()
                except AntiphonError:
                    if not told_start and self._spec.resumed.token_ids:
                        for event in await self._begin():
                            yield event
                    raise
                if self._closed:
                    return
                if not told_start:
                    told_start = True
                    for event in await self._begin():
                        yield event
                for index, part in self._parts(news):
                    for event in (
                        await self._take_apart(index, part)
                        if self._is_burst(index, part)
                        else self._take(index, part)
                    ):
                        yield event
            await self._settle()
            yield GenerationCompleted(usage=self.usage, timings=self.timings)
        finally:
            self.close()

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
        for timer in self._timers:
            timer.cancel()
        self._run.ticket.release()
        _leave(self._spec, self._run.place, self.usage.prompt_tokens + self.usage.output_tokens)
        self._run.stream.close()
        self._wait_at_most_until(asyncio.get_running_loop().time())

    @property
    def _finished(self) -> bool:
        return all(record.finished for record in self.outputs)

    def _start_timers(self) -> Iterator[asyncio.TimerHandle]:
        loop, now_ns = asyncio.get_running_loop(), self._run.clock_ns()
        if self._spec.deadline_ns is not None:
            yield loop.call_later((self._spec.deadline_ns - now_ns) / _NANOS, self._time_out)
        limit_s = self._spec.config.time_limit_s
        if limit_s is not None:
            spent_s = (now_ns - self._spec.received_ns) / _NANOS
            reason = FinishReason.FINISH_REASON_TIME_LIMIT
            yield loop.call_later(limit_s - spent_s, self._end_early, reason)

    def _time_out(self) -> None:
        """Fails the request at its deadline, whether or not anyone reads its events now."""
        spent_s = (self._run.clock_ns() - self._spec.received_ns) / _NANOS
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
                    news = await self._run.stream.next()
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

    def _parts(self, news: RequestNews | None) -> list[tuple[int, NewTokens]]:
        """Returns what there is of each output, cut to what one delta may hold."""
        if news is None:
            # The engine gives no word on an end that was asked for, so it is taken as done.
            ended = NewTokens(ended=messages.FinishReason.CANCELLED)
            return [(index, ended) for index in range(len(self._progress))]
        parts = []
        for index in sorted(news.outputs):
            new = news.outputs[index]
            whole = NewTokens(token_ids=new.token_ids, logprobs=new.logprobs, ended=new.ended)
            max_tokens = self._progress[index].max_take_tokens
            if len(whole.token_ids) <= max_tokens:
                parts.append((index, whole))
            else:
                parts += [(index, part) for part in whole.split(max_tokens)]
        return parts

    async def _begin(self) -> list[Event]:
        """Returns the first events: the start, and what output from before makes."""
        events: list[Event] = [self._started()]
        if self._spec.resumed.token_ids:
            for part in self._spec.resumed.split(self._progress[0].max_take_tokens):
                events += await self._take_apart(0, part)
        return events

    def _is_burst(self, index: int, part: NewTokens) -> bool:
        """Whether new tokens are so many that work on them would hold up others."""
        num_entries = len(part.token_ids) * self._progress[index].entries_per_token
        return num_entries > _BURST_ENTRIES and self._run.offload.has_room

    async def _take_apart(self, index: int, part: NewTokens) -> list[Delta | OutputFinished]:
        """Returns the events that new tokens of an output make, worked out beside the event loop.

        In place where that is not worth it.
        """
        if self.outputs[index].finished or not self._is_burst(index, part):
            return self._take(index, part)
        deltas = await self._run.offload.run(self._taking(index, part))
        return self._with_end(index, deltas)

    def _take(self, index: int, part: NewTokens) -> list[Delta | OutputFinished]:
        """Returns the events that new tokens of an output make."""
        if self.outputs[index].finished:
            return []
        if part.ended is None:
            deltas = self._progress[index].take(part)
        else:
            deltas = self._taking(index, part)()
        return self._with_end(index, deltas)

    def _taking(self, index: int, part: NewTokens) -> Callable[[], list[Delta]]:
        progress = self._progress[index]
        if part.ended is messages.FinishReason.CANCELLED:
            reason = self._early_reason or FinishReason.FINISH_REASON_CANCELLED
            return partial(progress.take_last, part, reason)
        return partial(progress.take, part)

    def _with_end(self, index: int, deltas: list[Delta]) -> list[Delta | OutputFinished]:
        """Adds the end of an output to its last deltas, if those are they."""
        events: list[Delta | OutputFinished] = [*deltas]
        record = self.outputs[index]
        if record.finished:
            if index in self._unconfirmed:
                self._run.stream.finish_output(index, len(record.token_ids))
            events.append(
                OutputFinished(
                    output_index=index,
                    finish_reason=record.finish_reason,
                    stop_match=record.stop_match,
                )
            )
        return events

    async def _settle(self) -> None:
        """Gives the engine a moment to confirm ends that it was told of, for its own figures."""
        if self._unconfirmed and self._early_reason is None:
            self._wait_at_most_until(asyncio.get_running_loop().time() + _END_GRACE_S)
        # All outputs are finished: a failure can't change them any more.
        with contextlib.suppress(AntiphonError):
            while self._unconfirmed and await self._next_news() is not None:
                pass


def _leave(spec: GenerationSpec, place: Place, used_tokens: int) -> None:
    """Settles what was set aside, and gives a place back that is the request's own."""
    place.settle(used_tokens)
    if spec.place is None:
        place.release()
