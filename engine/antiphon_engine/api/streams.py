"""The news of running requests, joined until their readers take them."""

import asyncio
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.handle import OutputNews, RequestNews, TakeTokens, take_nothing
from antiphon_engine.api.messages import (
    Cancel,
    FinishOutput,
    Hold,
    OutputEnded,
    Release,
    StepNews,
    ToEngine,
)
from antiphon_engine.api.prompt_logprobs import PromptLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class MostUnread:
    """What may be unread of a request before it rests."""

    num_tokens: int
    """Of an output."""
    num_prompt_bytes: int
    """Of its prompt's log-probabilities."""


class NewsStream:
    """The RequestStream of one request. Written by the link, read by one task; one event loop.

    The request rests while its reader asks for that, and while too much is unread.
    """

    __slots__ = (
        "_arrival",
        "_cancelled",
        "_closed",
        "_error",
        "_forget",
        "_full",
        "_has_first_token",
        "_has_news",
        "_has_tokens_only",
        "_held",
        "_max_unread_prompt_bytes",
        "_max_unread_tokens",
        "_news",
        "_num_open",
        "_num_unread_bytes",
        "_rests",
        "_send",
        "_take",
        "request_id",
    )

    def __init__(
        self,
        request_id: int,
        *,
        num_outputs: int,
        most_unread: MostUnread,
        send: Callable[[ToEngine], None],
        forget: Callable[[int], None],
    ) -> None:
        self.request_id: Final = request_id
        self._num_open = num_outputs
        self._max_unread_tokens = most_unread.num_tokens
        self._max_unread_prompt_bytes = most_unread.num_prompt_bytes
        self._num_unread_bytes = 0
        self._send = send
        self._forget = forget
        self._news = RequestNews()
        self._has_news = False
        self._has_tokens_only = True
        self._has_first_token = False
        self._error: AntiphonError | None = None
        self._cancelled = False
        self._held = False
        self._full = False
        self._rests = False
        self._closed = False
        self._take: TakeTokens = take_nothing
        self._arrival: asyncio.Future[None] | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether it has other news than more tokens."""
        return not self._has_tokens_only

    @property
    def is_over(self) -> bool:
        """Whether the end of the last output is in."""
        return not self._num_open

    async def next(self, take: TakeTokens = take_nothing) -> RequestNews:
        """See RequestStream."""
        if self._has_news and self._has_tokens_only:
            self._offer(take)
        if not self._has_news and self._error is None:
            assert self._num_open, "nothing comes after the last news"
            assert not self._closed, "a closed stream is read no more"
            self._take = take
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self._has_news:
            news, self._news = self._news, RequestNews()
            self._has_tokens_only = True
            self._note_read()
            return news
        assert self._error is not None
        raise self._error

    def finish_output(self, output_index: int, keep_tokens: int) -> None:
        """See RequestStream."""
        if self._runs():
            self._send(
                FinishOutput(
                    request_id=self.request_id, output_index=output_index, keep_tokens=keep_tokens
                )
            )

    def cancel(self) -> None:
        """See RequestStream."""
        if self._runs() and not self._cancelled:
            self._cancelled = True
            self._send(Cancel(request_id=self.request_id))

    def hold(self) -> None:
        """See RequestStream."""
        self._held = True
        self._rest()

    def release(self) -> None:
        """See RequestStream."""
        self._held = False
        self._go_on()

    def close(self) -> None:
        """See RequestStream."""
        if self._closed:
            return
        self.cancel()
        self._closed = True
        self._forget(self.request_id)

    # Written by the link.

    def start(self, cached_prompt_tokens: int, step_start_ns: int) -> None:
        """Adds the news that the first step ran."""
        self._news.cached_prompt_tokens = cached_prompt_tokens
        self._news.first_step_ns = step_start_ns
        self._has_news = True
        self._has_tokens_only = False

    def add_token(self, output_index: int, token_id: int, end_ns: int) -> None:
        """Adds a token that came in the step that ended at `end_ns`."""
        news = self._news
        output = news.outputs.get(output_index)
        if output is None:
            output = news.outputs[output_index] = OutputNews()
        token_ids = output.token_ids
        token_ids.append(token_id)
        if not self._has_first_token:
            self._has_first_token = True
            news.first_token_ns = end_ns
        news.last_token_ns = end_ns
        if len(token_ids) >= self._max_unread_tokens and not self._full:
            self._full = True
            self._rest()
        self._has_news = True

    def add_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Adds what a step told of the prompt."""
        self._news.prompt_logprobs.append(logprobs)
        self._num_unread_bytes += logprobs.size_bytes
        if self._num_unread_bytes >= self._max_unread_prompt_bytes and not self._full:
            self._full = True
            self._rest()
        self._has_news = True
        self._has_tokens_only = False

    def end_output(self, ended: OutputEnded) -> None:
        """Adds the end of an output."""
        output = self.output(ended.output_index)
        output.ended = ended.reason
        output.num_steps = ended.num_steps
        output.num_preemptions = ended.num_preemptions
        output.times = ended.times
        self._num_open -= 1
        self._has_news = True
        self._has_tokens_only = False

    def announce(self) -> None:
        """Brings what was added to the reader. Idempotent."""
        arrival = self._arrival
        if arrival is None or arrival.done() or not self._has_news:
            return
        try:
            if self._has_tokens_only:
                self._offer(self._take)
        except Exception as error:
            # It is the reader's own, and nothing to the other requests of the step.
            self._arrival = None
            arrival.set_exception(error)
        else:
            if self._has_news:
                self._wake()

    def fail(self, error: AntiphonError) -> None:
        """Ends the stream with `error`, which is raised once the news so far are read."""
        self._error = error
        self._wake()

    def output(self, output_index: int) -> OutputNews:
        """Returns the unread news of an output, to be added to."""
        output = self._news.outputs.get(output_index)
        if output is None:
            output = self._news.outputs[output_index] = OutputNews()
        return output

    def _rest(self) -> None:
        if self._runs() and not self._rests:
            self._rests = True
            self._send(Hold(request_id=self.request_id))

    def _go_on(self) -> None:
        if self._runs() and self._rests and not (self._held or self._full):
            self._rests = False
            self._send(Release(request_id=self.request_id))

    def _offer(self, take: TakeTokens) -> None:
        """Offers unread news, which hold tokens only, to the reader."""
        if take(self._news):
            # Used again, since there would be new ones for every token.
            self._news.clear_tokens()
            self._has_news = False
            if self._full:
                self._note_read()

    def _note_read(self) -> None:
        self._has_news = False
        self._num_unread_bytes = 0
        if self._full:
            self._full = False
            self._go_on()

    def _wake(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)

    def _runs(self) -> bool:
        return self._num_open > 0 and self._error is None and not self._closed


def deliver_step(step: StepNews, streams: Mapping[int, NewsStream]) -> list[NewsStream]:
    """Adds a step's news to the streams they belong to, and returns those, to be announced.

    News of requests that have no stream any more are dropped.
    """
    told: list[NewsStream] = []
    for started in step.started:
        if stream := streams.get(started.request_id):
            stream.start(started.cached_prompt_tokens, started.step_start_ns)
            told.append(stream)
    for part in step.prompt_logprobs:
        if stream := streams.get(part.request_id):
            stream.add_prompt_logprobs(part)
            told.append(stream)
    rows = zip(
        array("Q", step.request_ids),
        array("i", step.output_indices),
        array("i", step.token_ids),
        strict=True,
    )
    for request_id, output_index, token_id in rows:
        if stream := streams.get(request_id):
            stream.add_token(output_index, token_id, step.end_ns)
            told.append(stream)
    for logprobs in step.logprobs:
        if stream := streams.get(logprobs.request_id):
            stream.output(logprobs.output_index).logprobs.append(logprobs)
    for ended in step.ended:
        if stream := streams.get(ended.request_id):
            stream.end_output(ended)
            told.append(stream)
    return told
