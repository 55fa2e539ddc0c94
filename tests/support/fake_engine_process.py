"""An engine process without torch, model or core, behind the real link. It starts in no time.

`fake_engine_command` returns what runs it; `EngineLink.start` and `serve.run` take that.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import assert_never

import msgspec

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.linked_process import link_of_this_process, read_start
from antiphon_engine.api.messages import (
    Answer,
    Cancel,
    CloseSession,
    FinishOutput,
    FlushPrefixCache,
    ForkSession,
    Hold,
    MatchPrefix,
    ReadStats,
    Ready,
    Release,
    RequestFailed,
    RewindSession,
    Shutdown,
    StepNews,
    Submit,
    ToEngine,
)
from antiphon_engine.api.process import EngineStart
from antiphon_engine.link import FrontEndGoneError, FrontEndLink
from support.fake_batch import FakeBatch, Shape
from support.fake_prefix_cache import token_ids_of
from support.step_clock import StepClock

_IDLE_WAIT_S = 1.0
_KV_CACHE_TOKENS = 1 << 20


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is like."""

    step_interval_s: float = 0.002
    vocabulary_size: int = 1024
    context_tokens: int = 8192
    alphabet: list[int] = []
    """The token ids that it draws from; empty: all."""
    words: list[int] = []
    calls: list[list[int]] = []
    """See Shape."""
    clock_path: str = ""
    """Where it notes when its steps ended; empty: nowhere. See StepClock."""


def fake_engine_command(path: Path, behaviour: Behaviour) -> list[str]:
    """Writes how the engine behaves into a file and returns the command that runs it."""
    path.write_bytes(msgspec.json.encode(behaviour))
    tests = str(Path(__file__).parents[1])
    program = (
        f"import sys; sys.path.insert(0, {tests!r})\n"
        "from support.fake_engine_process import main; sys.exit(main())"
    )
    return [sys.executable, "-c", program, "--behaviour", str(path)]


class FakeEngineLoop:
    """Receives, steps at its intervals, and tells."""

    def __init__(self, link: FrontEndLink, behaviour: Behaviour, config: EngineConfig) -> None:
        shape = Shape(
            alphabet=behaviour.alphabet or range(behaviour.vocabulary_size),
            context_tokens=config.max_context_tokens or behaviour.context_tokens,
            kv_cache_tokens=config.kv_cache_tokens or _KV_CACHE_TOKENS,
            block_tokens=config.block_tokens,
            max_rows=config.max_rows,
            words=behaviour.words,
            calls=behaviour.calls,
        )
        self._link = link
        self._interval_s = behaviour.step_interval_s
        self._clock = StepClock(Path(behaviour.clock_path)) if behaviour.clock_path else None
        self._seeds: dict[int, int] = {}
        self._batch = FakeBatch(shape)
        self._ready = Ready(
            architecture="FakeForCausalLM",
            device="cpu",
            dtype="float32",
            quantization="",
            kv_cache_dtype="float32",
            kernels={"attention": "fake"},
            vocabulary_size=behaviour.vocabulary_size,
            context_tokens=shape.context_tokens,
            kv_cache_tokens=shape.kv_cache_tokens,
            block_tokens=shape.block_tokens,
            max_rows=shape.max_rows,
            max_step_tokens=config.max_step_tokens,
            max_top_logprobs=0,
        )

    def run(self) -> None:
        """Serves until it is told to end. Raises FrontEndGoneError."""
        self._link.send(self._ready)
        due_s = time.monotonic()
        while True:
            has_work = self._batch.has_work
            wait_s = max(0.0, due_s - time.monotonic()) if has_work else _IDLE_WAIT_S
            for message in self._link.receive(wait_s):
                if isinstance(message, Shutdown):
                    return
                self._take(message)
            self._tell_ended()
            now_s = time.monotonic()
            if not has_work:
                due_s = max(due_s, now_s)
            if self._batch.has_work and now_s >= due_s:
                # Steps keep to their beat, unless they are far behind it.
                due_s = max(due_s + self._interval_s, now_s - self._interval_s)
                self._step()

    def _take(self, message: ToEngine) -> None:
        batch = self._batch
        match message:
            case Submit():
                self._submit(message)
            case Cancel():
                batch.cancel(message.request_id)
            case FinishOutput():
                batch.finish(message.request_id, message.output_index)
            case Hold():
                batch.set_held(message.request_id, held=True)
            case Release():
                batch.set_held(message.request_id, held=False)
            case ReadStats():
                self._link.send(Answer(query_id=message.query_id, value=batch.stats()))
            case FlushPrefixCache():
                self._link.send(Answer(query_id=message.query_id, value=batch.cache.clear()))
            case MatchPrefix():
                tokens = token_ids_of(message.tokens)
                value = batch.cache.match(message.scope, tokens)
                self._link.send(Answer(query_id=message.query_id, value=value))
            case CloseSession() | ForkSession() | RewindSession() | Shutdown():
                pass
            case _:
                assert_never(message)

    def _submit(self, message: Submit) -> None:
        problem = self._batch.submit(message.request_id, message.request)
        if problem:
            self._link.send(
                RequestFailed(request_id=message.request_id, reason="NEVER_FITS", message=problem)
            )
        elif self._clock is not None:
            self._seeds[message.request_id] = message.request.sampling.seed

    def _step(self) -> None:
        news = self._batch.run_step()
        if self._clock is not None:
            self._clock.note_step(news.step, news.end_ns)
            for started in news.started:
                self._clock.note_start(self._seeds.pop(started.request_id), news.step)
        self._link.send(news)

    def _tell_ended(self) -> None:
        if ended := self._batch.take_ended():
            now_ns = time.monotonic_ns()
            news = StepNews(step=self._batch.step, start_ns=now_ns, end_ns=now_ns, ended=ended)
            self._link.send(news)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--behaviour", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    behaviour = msgspec.json.decode(arguments.behaviour.read_bytes(), type=Behaviour)
    link = FrontEndLink(link_of_this_process(rest))
    start = read_start(sys.stdin.buffer, EngineStart)
    try:
        FakeEngineLoop(link, behaviour, start.config).run()
    except FrontEndGoneError:
        return 3
    return 0
