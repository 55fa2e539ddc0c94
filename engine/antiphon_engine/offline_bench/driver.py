"""An engine that is driven from the thread that measures it."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.frames import encode_frame
from antiphon_engine.api.messages import (
    GenerationRequest,
    RequestFailed,
    SamplingParams,
    StepNews,
    StopParams,
    Submit,
    ToEngine,
    ToFrontEnd,
)
from antiphon_engine.api.process import EngineStart
from antiphon_engine.engine_process import LoadedModel, loop_settings, make_parts
from antiphon_engine.loop import EngineLoop
from antiphon_engine.offline_bench.stopwatch import Stopwatch, TimedExecutor


class OfflineLink:
    """A MessageLink without a socket."""

    def __init__(self) -> None:
        self._received: list[ToEngine] = []
        self.news: deque[StepNews] = deque()
        self.failures: list[RequestFailed] = []

    def put(self, message: ToEngine) -> None:
        """Has the loop receive a message with its next pass."""
        self._received.append(message)

    def receive(self, timeout_s: float) -> list[ToEngine]:
        """See MessageLink; never waits."""
        received, self._received = self._received, []
        return received

    def send(self, message: ToFrontEnd) -> None:
        """See MessageLink."""
        # As for a front end, so that a step's work is what it is in a server.
        encode_frame(message)
        if isinstance(message, StepNews):
            self.news.append(message)
        elif isinstance(message, RequestFailed):
            self.failures.append(message)


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of a step."""

    at_s: float
    """time.perf_counter."""
    request_ids: Sequence[int]
    token_ids: Sequence[int]
    """Of the same length: one token each."""
    ended: Sequence[int]


class BenchError(Exception):
    """A workload can't be run; the message says why, in one line."""


class OfflineEngine:
    """Takes greedy requests whose ends are their lengths, and runs steps when it is told to."""

    def __init__(self, config: EngineConfig, checkpoint: Path, model: LoadedModel) -> None:
        self.vocabulary_size = model.facts.vocabulary_size
        self.num_kv_tokens = (model.facts.num_blocks - 1) * config.block_tokens
        self.stopwatch = Stopwatch()
        self._timed: TimedExecutor | None = None
        if model.device.is_cuda:
            self._timed = TimedExecutor(model.executor)
            model = replace(model, executor=self._timed)
        start = EngineStart(config=config, checkpoint=str(checkpoint))
        self._parts = make_parts(start, model)
        self._link = OfflineLink()
        self._loop = EngineLoop(
            self._parts, self._link, loop_settings(config), watch=self.stopwatch
        )
        self._num_requests = 0

    def add(self, prompt: NDArray[np.int32], num_output: int, *, session: int = 0) -> int:
        """Sends a request, which generates exactly so many tokens; returns its id."""
        self._num_requests += 1
        request = GenerationRequest(
            prompt=prompt.tobytes(),
            sampling=SamplingParams(seed=self._num_requests, temperature=0.0),
            stop=StopParams(max_output_tokens=num_output),
            session=session,
        )
        self._link.put(Submit(request_id=self._num_requests, request=request))
        return self._num_requests

    def step(self) -> Brought | None:
        """Runs a pass of the loop; returns what a step brought, None where nothing came.

        Raises:
            BenchError: a request was refused.
        """
        news = self._link.news
        if not news:
            self._loop.run_once()
            self.stopwatch.end_pass()
        if self._link.failures:
            raise BenchError(f"a request was refused: {self._link.failures[0].message}")
        if not news:
            return None
        told = news.popleft()
        return Brought(
            at_s=time.perf_counter(),
            request_ids=np.frombuffer(told.request_ids, np.uint64).tolist(),
            token_ids=np.frombuffer(told.token_ids, np.int32).tolist(),
            ended=[ended.request_id for ended in told.ended],
        )

    def clear_times(self) -> None:
        """Forgets what steps took so far."""
        self.stopwatch.clear()
        if self._timed is not None:
            self._timed.device_ms.clear()

    def step_times(self) -> dict[str, float]:
        """Returns medians since `clear_times`: microseconds by part, and the device's, if any."""
        times = {f"{part}_us": us for part, us in self.stopwatch.medians_us().items()}
        if self._timed is not None and self._timed.device_ms:
            times["device_us"] = round(1000 * median(self._timed.device_ms), 1)
        return times

    def close(self) -> None:
        """Lets go of the engine's threads."""
        self._parts.close()
