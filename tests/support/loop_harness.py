"""An engine loop run step by step in the test's own thread, seen from the front end's side."""

import socket
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.frames import encode_frame, front_end_reader
from antiphon_engine.api.messages import (
    Answer,
    CoreStats,
    FinishReason,
    GenerationRequest,
    OutputEnded,
    ReadStats,
    RequestFailed,
    SamplingParams,
    Started,
    StepNews,
    StopParams,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from antiphon_engine.api.process import EngineStart
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_engine.arrivals import Arrivals
from antiphon_engine.engine_process import LoadedModel, loop_settings, make_parts
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import mask_words
from antiphon_engine.grammar.filling import MaskFiller
from antiphon_engine.grammar.preparing import GuideMaker
from antiphon_engine.guidance import Guidance
from antiphon_engine.link import FrontEndLink
from antiphon_engine.loop import EngineLoop
from antiphon_engine.run_ahead import RunAhead
from support.scripted_engine import Script, load_scripted

OutputKey = tuple[int, int]
"""Request id and output index."""


def request(
    *prompt: int,
    sampling: SamplingParams | None = None,
    stop: StopParams | None = None,
    num_outputs: int = 1,
    top_logprobs: int | None = None,
    num_resumed: int = 0,
    prompt_logprobs: int | None = None,
    num_told_positions: int = 0,
) -> GenerationRequest:
    """A request, greedy and of 8 tokens unless told otherwise."""
    return GenerationRequest(
        prompt=array("i", prompt).tobytes(),
        sampling=sampling or SamplingParams(seed=7, temperature=0.0),
        stop=stop or StopParams(max_output_tokens=8),
        num_outputs=num_outputs,
        top_logprobs=top_logprobs,
        num_resumed_tokens=num_resumed,
        prompt_logprobs=prompt_logprobs,
        num_told_positions=num_told_positions,
    )


@dataclass(slots=True)
class Heard:
    """All that the loop has said."""

    steps: list[StepNews] = field(default_factory=list)
    tokens: dict[OutputKey, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[OutputKey, list[TokenLogprobs]] = field(
        default_factory=lambda: defaultdict(list)
    )
    prompts: dict[int, list[PromptLogprobs]] = field(default_factory=lambda: defaultdict(list))
    started: dict[int, list[Started]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[OutputKey, list[OutputEnded]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[int, list[RequestFailed]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[int, int | CoreStats] = field(default_factory=dict)

    def reasons(self, request_id: int) -> list[FinishReason]:
        """Why the outputs of a request ended, by output index; those that have."""
        keys = sorted(key for key in self.ended if key[0] == request_id)
        return [ended.reason for key in keys for ended in self.ended[key]]


class LoopHarness:
    """A loop with a scripted model and the front end's end of its socket."""

    def __init__(self, loop: EngineLoop, front_end: socket.socket) -> None:
        self.loop = loop
        self.heard = Heard()
        self._front_end = front_end
        self._front_end.setblocking(False)
        self._reader = front_end_reader()
        self._num_asked = 0
        self._num_queries = 0

    def send(self, *messages: ToEngine) -> None:
        """Puts messages on the socket; the loop takes them with its next pass."""
        for message in messages:
            self._front_end.sendall(encode_frame(message))
        self._num_asked += len(messages)

    def submit(self, request_id: int, request: GenerationRequest) -> None:
        """Puts a request on the socket."""
        self.send(Submit(request_id=request_id, request=request))

    def step(self) -> None:
        """Runs one pass, unless it would only wait."""
        if self._num_asked or self.loop.busy:
            self._num_asked = 0
            self.loop.run_once()
        self._hear()

    def step_or_wait(self) -> None:
        """Runs one pass, also where it waits."""
        self._num_asked = 0
        self.loop.run_once()
        self._hear()

    def run(self, max_steps: int = 2000) -> None:
        """Runs until nothing is left to do."""
        self.step()
        while self.loop.busy:
            max_steps -= 1
            assert max_steps, "the loop does not come to rest"
            self.step()

    def stats(self) -> CoreStats:
        """Asks for the counters."""
        self._num_queries += 1
        self.send(ReadStats(query_id=self._num_queries))
        self.step()
        stats = self.heard.answers[self._num_queries]
        assert isinstance(stats, CoreStats)
        return stats

    def _hear(self) -> None:
        while True:
            try:
                data = self._front_end.recv(1 << 20)
            except BlockingIOError:
                return
            for message in self._reader.feed(data):
                if isinstance(message, StepNews):
                    self._hear_step(message)
                elif isinstance(message, RequestFailed):
                    self.heard.failed[message.request_id].append(message)
                elif isinstance(message, Answer):
                    self.heard.answers[message.query_id] = message.value

    def _hear_step(self, news: StepNews) -> None:
        heard = self.heard
        heard.steps.append(news)
        for started in news.started:
            heard.started[started.request_id].append(started)
        for part in news.prompt_logprobs:
            key = part.request_id, 0
            assert key not in heard.tokens, "told of a prompt behind a token"
            assert key not in heard.ended, "told of a prompt behind its request's end"
            heard.prompts[part.request_id].append(part)
        for request_id, output_index, token_id in zip(
            array("Q", news.request_ids),
            array("i", news.output_indices),
            array("i", news.token_ids),
            strict=True,
        ):
            assert (request_id, output_index) not in heard.ended, "a token after its output's end"
            heard.tokens[request_id, output_index].append(token_id)
        for logprobs in news.logprobs:
            heard.logprobs[logprobs.request_id, logprobs.output_index].append(logprobs)
        for ended in news.ended:
            heard.ended[ended.request_id, ended.output_index].append(ended)


@contextmanager
def running_loop(
    script: Script | None = None,
    config: EngineConfig | None = None,
    *,
    run_ahead: RunAhead | None = None,
) -> Iterator[LoopHarness]:
    """A fresh loop with a scripted model; its sockets are closed afterwards."""
    config = config or EngineConfig()
    model = load_scripted(script or Script(), config)
    with running_loop_of(model, config, run_ahead=run_ahead) as harness:
        yield harness


@contextmanager
def running_loop_of(
    model: LoadedModel,
    config: EngineConfig,
    *,
    checkpoint: str = "scripted",
    filler: type[MaskFiller] = MaskFiller,
    backends: Backends | None = None,
    run_ahead: RunAhead | None = None,
) -> Iterator[LoopHarness]:
    """A fresh loop; its sockets are closed afterwards.

    Args:
        model: What it runs.
        config: How.
        checkpoint: Where a tokenizer lies, if grammars are to hold.
        filler: What makes its masks.
        backends: What compiles its grammars; None: those of the checkpoint.
        run_ahead: How many steps are under way; None: as the settings say.
    """
    front_end, engine_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # Nobody reads while the loop steps: all that it says between two looks must fit.
    engine_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    start = EngineStart(config=config, checkpoint=checkpoint)
    parts = make_parts(start, model)
    if filler is not MaskFiller:
        made = filler(
            num_rows=config.max_rows,
            num_words=mask_words(model.facts.vocabulary_size),
            num_threads=2,
            step_limit_s=60.0,
        )
        parts = replace(parts, guidance=Guidance(parts.requests, made))
    if backends is not None:
        guide_maker = GuideMaker(
            lambda: backends,
            cache_bytes=config.grammar_cache_bytes,
            num_threads=2,
            step_limit_s=config.grammar_step_limit_ms / 1000,
        )
        parts = replace(parts, arrivals=Arrivals(parts.requests, guide_maker))
    if run_ahead is not None:
        parts = replace(parts, run_ahead=run_ahead)
    with front_end, engine_end:
        loop = EngineLoop(parts, FrontEndLink(engine_end), loop_settings(config))
        try:
            yield LoopHarness(loop, front_end)
        finally:
            parts.close()
