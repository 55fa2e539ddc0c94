"""What an engine without a model works on: requests whose tokens follow from all that is before."""

import hashlib
import random
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_engine.api.messages import (
    CoreStats,
    FinishReason,
    GenerationRequest,
    OutputEnded,
    Started,
    StepNews,
)
from support.fake_prefix_cache import FakePrefixCache

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the engine is, and what it says."""

    alphabet: Sequence[int]
    """The token ids that it draws from."""
    context_tokens: int
    kv_cache_tokens: int
    block_tokens: int
    max_rows: int
    words: Sequence[int] = ()
    """What it draws from where it may call tools, and says around its calls."""
    calls: Sequence[Sequence[int]] = ()
    """Whole calls; empty: it makes none."""


class FakeOutput:
    """One output. Its next token follows from the prompt, the seed and every token so far.

    So a request that is taken up again behind the wrong tokens says something else.
    """

    __slots__ = (
        "_alphabet",
        "_enders",
        "_script",
        "_state",
        "_stop",
        "ended",
        "index",
        "num_said",
        "said",
    )

    def __init__(self, request: GenerationRequest, index: int, shape: Shape) -> None:
        num_resumed = request.num_resumed_tokens
        split = len(request.prompt) - 4 * num_resumed
        seed = request.sampling.seed.to_bytes(8, "little") + bytes([index])
        digest = hashlib.blake2b(request.prompt[:split] + seed, digest_size=8).digest()
        self.index = index
        self.ended: FinishReason | None = None
        self.num_said = num_resumed
        self.said = array("i")
        may_call = request.grammar is not None and bool(shape.calls)
        self._alphabet = shape.words if may_call else shape.alphabet
        self._script = _calls_after_words(digest, shape) if may_call else []
        self._stop = request.stop
        self._enders = {*request.stop.end_ids, *request.stop.stop_ids}
        self._state = int.from_bytes(digest, "little")
        resumed = array("i", request.prompt[split:])
        if [*resumed[: len(self._script)]] != self._script[:num_resumed]:
            self._script = []  # Taken up behind what it never said.
        for token_id in resumed:
            self._advance(token_id)

    def say(self) -> int:
        """Draws the next token, and notes whether the output ends with it."""
        alphabet, stop, script = self._alphabet, self._stop, self._script
        place = (self._state >> 33) % len(alphabet)
        token_id = alphabet[place]
        if self.num_said < len(script):
            token_id = script[self.num_said]
        elif script and stop.end_ids:
            token_id = stop.end_ids[0]
        while self.num_said < stop.min_output_tokens and token_id in self._enders:
            place += 1
            token_id = alphabet[place % len(alphabet)]
        self._advance(token_id)
        self.said.append(token_id)
        self.num_said += 1
        if token_id in self._enders:
            is_end = token_id in stop.end_ids
            self.ended = FinishReason.END_ID if is_end else FinishReason.STOP_ID
        elif self.num_said >= stop.max_output_tokens:
            self.ended = FinishReason.MAX_OUTPUT_TOKENS
        return token_id

    def _advance(self, token_id: int) -> None:
        self._state = (self._state * 6364136223846793005 + token_id + 1442695040888963407) & _MASK


def _calls_after_words(digest: bytes, shape: Shape) -> list[int]:
    """Returns what an output begins with: some words, and none, one or some calls."""
    rng = random.Random(digest)
    calls = [rng.choice(shape.calls) for _ in range(rng.randint(0, 3))]
    words = rng.choices(shape.words, k=rng.randint(1, 12))
    return [*words, *(token_id for call in calls for token_id in call)]


class BatchRequest:
    """A request that was submitted."""

    __slots__ = ("held", "num_steps", "outputs", "prompt", "request", "request_id", "running")

    def __init__(self, request_id: int, request: GenerationRequest, shape: Shape) -> None:
        self.request_id = request_id
        self.request = request
        self.prompt = array("i", request.prompt)
        self.outputs = [FakeOutput(request, index, shape) for index in range(request.num_outputs)]
        self.running = False
        self.held = False
        self.num_steps = 0

    @property
    def open_outputs(self) -> list[FakeOutput]:
        """Those that have not ended."""
        return [output for output in self.outputs if output.ended is None]


class FakeBatch:
    """The requests of an engine. Every step gives each running output its next token."""

    def __init__(self, shape: Shape) -> None:
        self.step = 0
        self._shape = shape
        self._requests: dict[int, BatchRequest] = {}
        self._waiting: deque[BatchRequest] = deque()
        self._running: list[BatchRequest] = []
        self._cached = FakePrefixCache(shape.block_tokens)
        self._ended: list[OutputEnded] = []
        self._num_prefilled = self._num_reused = self._num_generated = 0

    @property
    def cache(self) -> FakePrefixCache:
        """What prompts find."""
        return self._cached

    @property
    def has_work(self) -> bool:
        """Whether a step would bring something."""
        return any(not request.held for request in (*self._waiting, *self._running))

    def submit(self, request_id: int, request: GenerationRequest) -> str:
        """Takes a request; returns what is wrong with its size, if anything."""
        needed = len(request.prompt) // 4 - request.num_resumed_tokens
        needed += request.stop.max_output_tokens
        limit = min(self._shape.context_tokens, self._shape.kv_cache_tokens)
        if needed > limit:
            return f"the request needs {needed} tokens of KV cache and there are {limit}"
        made = BatchRequest(request_id, request, self._shape)
        self._requests[request_id] = made
        self._waiting.append(made)
        return ""

    def cancel(self, request_id: int) -> None:
        """Ends what has not ended of a request."""
        if request := self._requests.get(request_id):
            for output in request.open_outputs:
                self._end(request, output, FinishReason.CANCELLED)

    def finish(self, request_id: int, output_index: int) -> None:
        """Ends one output."""
        request = self._requests.get(request_id)
        if request and request.outputs[output_index].ended is None:
            self._end(request, request.outputs[output_index], FinishReason.FINISHED_BY_CALLER)

    def set_held(self, request_id: int, *, held: bool) -> None:
        """Holds a request, or lets it go on."""
        if request := self._requests.get(request_id):
            request.held = held

    def take_ended(self) -> list[OutputEnded]:
        """Returns the outputs that ended between steps."""
        ended, self._ended = self._ended, []
        return ended

    def run_step(self) -> StepNews:
        """Runs one step."""
        self.step += 1
        start_ns = time.monotonic_ns()
        started = list(self._start_waiting(start_ns))
        request_ids, indices, token_ids = array("Q"), array("i"), array("i")
        for request in self._running:
            if request.held:
                continue
            request.num_steps += 1
            for output in request.outputs:
                if output.ended is None:
                    request_ids.append(request.request_id)
                    indices.append(output.index)
                    token_ids.append(output.say())
                    if output.ended is not None:
                        self._note_end(request, output)
        self._num_generated += len(token_ids)
        self._forget_ended()
        return StepNews(
            step=self.step,
            start_ns=start_ns,
            end_ns=time.monotonic_ns(),
            request_ids=request_ids.tobytes(),
            output_indices=indices.tobytes(),
            token_ids=token_ids.tobytes(),
            started=started,
            ended=self.take_ended(),
        )

    def stats(self) -> CoreStats:
        """Returns the counters."""
        size = self._shape.block_tokens
        running = [request for request in self._running if not request.held]
        num_used = sum(
            -(-(len(request.prompt) + output.num_said) // size)
            for request in running
            for output in request.open_outputs
        )
        num_blocks = self._shape.kv_cache_tokens // size
        return CoreStats(
            step=self.step,
            num_running=sum(len(request.open_outputs) for request in running),
            num_waiting=sum(not request.held for request in self._waiting),
            num_held=sum(request.held for request in self._requests.values()),
            num_blocks=num_blocks,
            num_blocks_used=num_used,
            num_blocks_cached=min(len(self._cached), num_blocks - num_used),
            num_blocks_free=max(0, num_blocks - num_used - len(self._cached)),
            num_prefilled_tokens_total=self._num_prefilled,
            num_reused_tokens_total=self._num_reused,
            num_generated_tokens_total=self._num_generated,
        )

    def _start_waiting(self, start_ns: int) -> list[Started]:
        started = []
        for request in [request for request in self._waiting if not request.held]:
            if len(self._running) >= self._shape.max_rows:
                break
            self._waiting.remove(request)
            self._running.append(request)
            request.running = True
            scope, prompt = request.request.scope, request.prompt
            num_cached = self._cached.match(scope, prompt)
            self._cached.add(scope, prompt)
            num_cached = min(num_cached, len(prompt) - request.request.num_resumed_tokens)
            self._num_reused += num_cached
            self._num_prefilled += len(prompt) - num_cached
            started.append(
                Started(
                    request_id=request.request_id,
                    cached_prompt_tokens=num_cached,
                    step_start_ns=start_ns,
                )
            )
        return started

    def _end(self, request: BatchRequest, output: FakeOutput, reason: FinishReason) -> None:
        """Ends an output from outside."""
        output.ended = reason
        self._note_end(request, output)
        self._forget_ended()

    def _note_end(self, request: BatchRequest, output: FakeOutput) -> None:
        if request.running:
            self._cached.add(request.request.scope, request.prompt + output.said[:-1])
        assert output.ended is not None
        self._ended.append(
            OutputEnded(
                request_id=request.request_id,
                output_index=output.index,
                reason=output.ended,
                num_tokens=output.num_said,
                num_steps=request.num_steps,
            )
        )

    def _forget_ended(self) -> None:
        if not self._ended:
            return
        done = [key for key, request in self._requests.items() if not request.open_outputs]
        for key in done:
            request = self._requests.pop(key)
            (self._running if request.running else self._waiting).remove(request)
