"""An engine without a model: it says what a script says, as fast as it is told to."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import (
    MAX_UNREAD_BYTES,
    EngineState,
    OutputNews,
    RequestNews,
    max_unread_tokens,
)
from antiphon_engine.api.messages import (
    CoreStats,
    FinishReason,
    GenerationRequest,
    Ready,
    Scope,
    TokenLogprobs,
)
from support.fake_prefix_cache import FakePrefixCache
from support.fake_prompt_logprobs import fake_prompt_logprobs
from support.fake_request import FakeRequest, Script

FACTS = Ready(
    architecture="FakeForCausalLM",
    device="cpu",
    dtype="float32",
    quantization="",
    kv_cache_dtype="float32",
    kernels={"attention": "fake"},
    vocabulary_size=1024,
    context_tokens=256,
    kv_cache_tokens=4096,
    block_tokens=32,
    max_rows=64,
    max_step_tokens=512,
    max_top_logprobs=20,
)


def fixed_ids(*token_ids: int) -> Script:
    """A script that says the same ids whatever is asked."""
    return lambda _request, _output_index: token_ids


def ids_from_prompt(request: GenerationRequest, output_index: int) -> Iterator[int]:
    """Never-ending ids that depend on the whole prompt, the seed and the output's index alone."""
    state = request.sampling.seed + 31 * output_index
    for token_id in array("i", request.prompt):
        state = (state * 1103515245 + token_id + 12345) % (1 << 31)
    while True:
        state = (state * 1103515245 + 12345) % (1 << 31)
        yield (state >> 8) % FACTS.vocabulary_size


class FakeEngine:
    """Implements EngineHandle. Each step gives every running output its next token.

    It steps by itself, once in each turn of the event loop or every `step_interval_s`, until
    `hold`; `step` steps by hand. Prompts are cached in whole blocks as in the real engine.
    """

    def __init__(
        self,
        *,
        script: Script = ids_from_prompt,
        facts: Ready = FACTS,
        state: EngineState = EngineState.READY,
        max_running: int = 64,
        step_interval_s: float = 0.0,
        num_late_tokens: int = 0,
        deaf: bool = False,
        chunk_tokens: int = 1 << 20,
    ) -> None:
        """Further requests wait while `max_running` outputs run.

        `num_late_tokens` come of an output after it was finished by the caller, as of an engine
        that runs ahead. A `deaf` one answers no cancellation. Prompts that are told of take a step
        for each `chunk_tokens` of them.
        """
        self.script = script
        self.num_late_tokens = num_late_tokens
        self._deaf = deaf
        self._chunk_tokens = chunk_tokens
        self.requests: list[FakeRequest] = []
        self.num_steps = 0
        self.num_prefilled_tokens = 0
        self.num_reused_tokens = 0
        self.hints: list[tuple[str, *tuple[int, ...]]] = []
        """What was told of sessions, in order: `close`, `fork` or `rewind`, and its numbers."""
        self.closed = False
        self._facts = facts
        self._state = state
        self._max_running = max_running
        self._step_interval_s = step_interval_s
        self._waiting: deque[FakeRequest] = deque()
        self._running: list[FakeRequest] = []
        self._cached = FakePrefixCache(facts.block_tokens)
        self._callbacks: list[Callable[[EngineState], None]] = []
        self._held = False
        self._scheduled = False

    # What EngineHandle asks for.

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def facts(self) -> Ready | None:
        return None if self._state is EngineState.STARTING else self._facts

    def on_state_change(self, callback: Callable[[EngineState], None]) -> None:
        self._callbacks.append(callback)

    def submit(
        self, request: GenerationRequest, *, max_unread_bytes: int = MAX_UNREAD_BYTES
    ) -> FakeRequest:
        self._check_up()
        stream = FakeRequest(self, request, self.script)
        stream.max_unread_tokens = max_unread_tokens(request, max_unread_bytes)
        self.requests.append(stream)
        needed = stream.prompt_size + request.stop.max_output_tokens
        if needed > self._facts.kv_cache_tokens:
            available = self._facts.kv_cache_tokens
            stream.error = AntiphonError(
                ErrorReason.NEVER_FITS,
                f"the request needs {needed} tokens of KV cache and there are {available}",
                metadata={"needed": str(needed), "available": str(available)},
            )
            return stream
        self._waiting.append(stream)
        self._schedule()
        return stream

    async def stats(self) -> CoreStats:
        self._check_up()
        return CoreStats(
            step=self.num_steps,
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_held=self.num_held,
            num_prefilled_tokens_total=self.num_prefilled_tokens,
            num_reused_tokens_total=self.num_reused_tokens,
            num_blocks=self._facts.kv_cache_tokens // self._facts.block_tokens,
            num_blocks_cached=len(self._cached),
        )

    async def flush_prefix_cache(self) -> int:
        self._check_up()
        return self._cached.clear()

    async def match_prefix(self, scope: Scope, tokens: bytes) -> int:
        self._check_up()
        return self._cached.match(scope, list(array("i", tokens)))

    def close_session(self, session: int) -> None:
        self.hints.append(("close", session))

    def fork_session(self, session: int, new_session: int) -> None:
        self.hints.append(("fork", session, new_session))

    def rewind_session(self, session: int, num_tokens: int) -> None:
        self.hints.append(("rewind", session, num_tokens))

    async def close(self) -> None:
        self.closed = True
        self.set_state(EngineState.DOWN)

    # What tests do with it and ask of it.

    @property
    def num_running(self) -> int:
        return sum(
            output.ended is None for r in self._running if not r.held for output in r.outputs
        )

    @property
    def num_waiting(self) -> int:
        return sum(not stream.held for stream in self._waiting)

    @property
    def num_held(self) -> int:
        """Outputs that are held, as the core counts them."""
        return sum(
            output.ended is None
            for stream in [*self._waiting, *self._running]
            if stream.held
            for output in stream.outputs
        )

    def hold(self) -> None:
        """No more steps by itself."""
        self._held = True

    def release(self) -> None:
        """Steps by itself again."""
        self._held = False
        self._schedule()

    def step(self, num_steps: int = 1) -> None:
        """Steps by hand."""
        for _ in range(num_steps):
            self._step()

    def set_state(self, state: EngineState) -> None:
        """Changes state; anything but READY and STALLED ends all requests with ENGINE_DOWN."""
        if state is self._state:
            return
        self._state = state
        if state in (EngineState.DOWN, EngineState.STARTING):
            self.fail_all(AntiphonError(ErrorReason.ENGINE_DOWN, "the engine died"))
        for callback in self._callbacks:
            callback(state)
        self._schedule()

    def fail_all(self, error: AntiphonError) -> None:
        """Ends every request with an error."""
        for stream in [*self._waiting, *self._running]:
            stream.fail(error)
        self._forget_ended()

    # What its requests ask for.

    def soon(self, function: Callable[[FakeRequest], None], stream: FakeRequest) -> None:
        if not self._deaf:
            asyncio.get_running_loop().call_soon(function, stream)

    def say_late(self, stream: FakeRequest) -> None:
        """Gives a request that is being held the tokens that were under way."""
        if stream in self._running:
            for index, output in enumerate(stream.outputs):
                for _ in range(self.num_late_tokens):
                    if output.ended is None and not output.finish_asked:
                        self._advance(stream, index)
        self._forget_ended()

    def go_on(self, _stream: FakeRequest) -> None:
        """Steps again, if a request that was held is all there is to do."""
        self._schedule()

    def settle(self, stream: FakeRequest) -> None:
        """Carries out the cancellation of a request and the finishing of its outputs."""
        for index, output in enumerate(stream.outputs):
            if output.ended is None and stream.cancel_asked:
                self._end(stream, index, FinishReason.CANCELLED)
            elif output.ended is None and output.finish_asked:
                for _ in range(output.num_late_tokens):
                    self._say(stream, index, next(output.script))
                self._end(stream, index, FinishReason.FINISHED_BY_CALLER)
        self._forget_ended()

    def _check_up(self) -> None:
        if self._state is not EngineState.READY:
            raise AntiphonError(
                ErrorReason.ENGINE_DOWN, f"the engine is {self._state.value}", retry_delay_s=1.0
            )

    def _schedule(self) -> None:
        has_work = any(not stream.held for stream in [*self._waiting, *self._running])
        if has_work and not (self._held or self._scheduled or self._state is not EngineState.READY):
            self._scheduled = True
            asyncio.get_running_loop().call_later(self._step_interval_s, self._step_by_itself)

    def _step_by_itself(self) -> None:
        self._scheduled = False
        if not self._held and self._state is EngineState.READY:
            self._step()
            self._schedule()

    def _step(self) -> None:
        self.num_steps += 1
        for stream in [stream for stream in self._waiting if not stream.held]:
            num_running = self.num_running
            if num_running and num_running + len(stream.outputs) > self._max_running:
                break
            self._waiting.remove(stream)
            self._start(stream)
        for stream in [stream for stream in self._running if not stream.held]:
            stream.num_steps += 1
            if not self._tell_of_prompt(stream):
                continue
            for index, output in enumerate(stream.outputs):
                if output.ended is None and not output.finish_asked:
                    self._advance(stream, index)
        self._forget_ended()

    def _start(self, stream: FakeRequest) -> None:
        scope = stream.request.scope
        num_cached = self._cached.match(scope, stream.prompt)
        if stream.request.tells_prompt:
            num_cached = min(num_cached, stream.next_told - 1)
        self.num_reused_tokens += num_cached
        self.num_prefilled_tokens += len(stream.prompt) - num_cached
        self._cached.add(scope, stream.prompt)
        self._running.append(stream)

        stream.num_cached = num_cached
        stream.start_ns = time.monotonic_ns()

        def change(news: RequestNews) -> None:
            news.cached_prompt_tokens = min(num_cached, stream.prompt_size)
            news.first_step_ns = stream.start_ns

        stream.tell(change)

    def _tell_of_prompt(self, stream: FakeRequest) -> bool:
        """Tells of a chunk of a prompt where that is asked for; whether it is told whole then."""
        first = stream.next_told
        if stream.request.prompt_logprobs is None or first >= stream.prompt_size:
            return True
        end = min(first + self._chunk_tokens, stream.prompt_size)
        request_id = self.requests.index(stream)
        told = fake_prompt_logprobs(request_id, stream.request, first, end)
        stream.next_told = end
        stream.tell(lambda news: news.prompt_logprobs.append(told))
        return end == stream.prompt_size

    def _advance(self, stream: FakeRequest, index: int) -> None:
        output, stop = stream.outputs[index], stream.request.stop
        token_id = output.draw(stop)
        self._say(stream, index, token_id)
        if token_id in stop.end_ids:
            self._end(stream, index, FinishReason.END_ID)
        elif token_id in stop.stop_ids:
            self._end(stream, index, FinishReason.STOP_ID)
        elif len(output.token_ids) >= stop.max_output_tokens:
            self._end(stream, index, FinishReason.MAX_OUTPUT_TOKENS)
        elif stream.prompt_size + len(output.token_ids) >= self._facts.context_tokens:
            self._end(stream, index, FinishReason.CONTEXT_FULL)

    def _say(self, stream: FakeRequest, index: int, token_id: int) -> None:
        stream.outputs[index].token_ids.append(token_id)
        num_said = sum(len(output.token_ids) for output in stream.outputs)
        is_first = num_said == len(stream.resumed) + 1

        now_ns = time.monotonic_ns()
        if is_first:
            stream.first_token_ns = now_ns

        def change(news: RequestNews) -> None:
            news.last_token_ns = now_ns
            if is_first:
                news.first_token_ns = now_ns
            output = news.outputs.setdefault(index, OutputNews())
            output.token_ids.append(token_id)
            if stream.request.top_logprobs is not None:
                output.logprobs.append(self._logprobs(stream, index, token_id))

        stream.tell(change)

    def _logprobs(self, stream: FakeRequest, index: int, token_id: int) -> TokenLogprobs:
        num_top = stream.request.top_logprobs or 0
        vocabulary = self._facts.vocabulary_size
        chosen = logprob_of(token_id)
        return TokenLogprobs(
            request_id=self.requests.index(stream),
            output_index=index,
            chosen=chosen,
            top_ids=array("i", [(token_id + i) % vocabulary for i in range(num_top)]).tobytes(),
            top_logprobs=array("f", [chosen - i for i in range(num_top)]).tobytes(),
        )

    def _end(self, stream: FakeRequest, index: int, reason: FinishReason) -> None:
        output = stream.outputs[index]
        output.ended = reason
        known = stream.prompt[: stream.prompt_size] + output.token_ids[:-1]
        if stream in self._running:
            self._cached.add(stream.request.scope, known)

        def change(news: RequestNews) -> None:
            told = news.outputs.setdefault(index, OutputNews())
            told.ended = reason
            told.num_steps = stream.num_steps
            if index == 0:
                told.times = stream.times

        stream.tell(change)

    def _forget_ended(self) -> None:
        self._running = [stream for stream in self._running if not stream.ended]
        self._waiting = deque(stream for stream in self._waiting if not stream.ended)


def logprob_of(token_id: int) -> float:
    """The log-probability that the fake engine tells of a token it has drawn."""
    return -((token_id % 64) + 1) / 8
