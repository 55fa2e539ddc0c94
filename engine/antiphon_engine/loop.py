"""The engine's one thread: receive, plan, execute, commit, publish, step after step."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog

from antiphon_engine import _native
from antiphon_engine.api.messages import (
    Answer,
    Cancel,
    CoreStats,
    FinishOutput,
    FlushPrefixCache,
    MatchPrefix,
    OutputEnded,
    ReadStats,
    Shutdown,
    StepNews,
    Submit,
    ToEngine,
)
from antiphon_engine.link import FrontEndGoneError, FrontEndLink
from antiphon_engine.requests import Requests
from antiphon_engine.sampler import Sampler
from antiphon_engine.step_executor import StepBuffers, StepExecutor
from antiphon_engine.step_news import collect_news

_log = structlog.get_logger(__name__)

IDLE_WAIT_S = 1.0
NUM_BUFFER_SETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What a loop drives; nothing else touches it while the loop runs."""

    core: _native.EngineCore
    """With its buffers registered."""
    executor: StepExecutor
    sampler: Sampler
    requests: Requests


class EngineLoop:
    """Runs requests until it is told to stop or its front end is gone."""

    def __init__(
        self,
        parts: EngineParts,
        link: FrontEndLink,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._core = parts.core
        self._executor = parts.executor
        self._sampler = parts.sampler
        self._requests = parts.requests
        self._link = link
        self._clock_ns = clock_ns
        self._set_index = 0
        self._busy = False
        self._rested = True
        self._stopped = False
        self._step_time_ns = 0
        self._schedule_time_ns = 0

    def run(self) -> None:
        """Works until Shutdown or the front end's end.

        Raises:
            Exception: a step failed. The state can't be trusted any more: the process must end.
        """
        try:
            while not self._stopped:
                self.run_once()
        except FrontEndGoneError as error:
            _log.warning("front end gone", cause=str(error))
        except Exception:
            _log.exception("engine failed", request_ids=self._requests.active_ids)
            raise

    @property
    def busy(self) -> bool:
        """Whether the last pass ran a step, so that the next one will not wait."""
        return self._busy

    def run_once(self) -> None:
        """Takes what has come and runs a step if it can; waits a little where there is nothing.

        Raises:
            FrontEndGoneError: there is nobody left to work for.
            Exception: a step failed.
        """
        self._receive()
        self._step()

    def _receive(self) -> None:
        messages = self._link.receive(0.0 if self._busy else IDLE_WAIT_S)
        if not messages and not self._busy:
            self._rest()
        ended: list[OutputEnded] = []
        for message in messages:
            ended += self._handle(message)
        # Told before the next step, which may take long.
        if ended:
            now = self._clock_ns()
            self._link.send(StepNews(step=0, start_ns=now, end_ns=now, ended=ended))

    def _handle(self, message: ToEngine) -> list[OutputEnded]:
        """Does what a message asks and returns the outputs that this ended."""
        match message:
            case Submit():
                failed = self._requests.submit(message.request_id, message.request)
                if failed is not None:
                    self._link.send(failed)
            case Cancel():
                return self._requests.cancel(message.request_id)
            case FinishOutput():
                ended = self._requests.finish_output(
                    message.request_id, message.output_index, keep_tokens=message.keep_tokens
                )
                return [ended] if ended is not None else []
            case ReadStats():
                self._link.send(Answer(query_id=message.query_id, value=self._stats()))
            case FlushPrefixCache():
                num_blocks = self._core.flush_prefix_cache()
                self._link.send(Answer(query_id=message.query_id, value=num_blocks))
            case MatchPrefix():
                num_tokens = self._core.match_prefix(
                    self._requests.scope_id(message.scope), np.frombuffer(message.tokens, np.int32)
                )
                self._link.send(Answer(query_id=message.query_id, value=num_tokens))
            case Shutdown():
                self._stopped = True
        return []

    def _step(self) -> None:
        start_ns = self._clock_ns()
        step_id = self._core.plan(self._set_index)
        self._busy = step_id != 0
        if not self._busy:
            return
        self._rested = False
        plan = self._executor.buffers(self._set_index)
        planned_ns = self._clock_ns()

        self._assign_slots(plan)
        logits = self._executor.execute(self._set_index)
        sampled = self._sampler.sample(logits, plan)
        self._executor.store_tokens(self._set_index, sampled.tokens)

        executed_ns = self._clock_ns()
        self._core.commit(step_id)
        end_ns = self._clock_ns()
        news = collect_news(
            plan, sampled.logprobs, self._requests, start_ns=start_ns, end_ns=end_ns
        )
        self._link.send(news)
        self._set_index = (self._set_index + 1) % NUM_BUFFER_SETS
        self._schedule_time_ns = planned_ns - start_ns + end_ns - executed_ns
        self._step_time_ns = self._clock_ns() - start_ns

    def _assign_slots(self, plan: StepBuffers) -> None:
        num_inits = int(plan["header"][_native.HEADER_NUM_SLOT_INITS])
        for row in plan["slot_init"][:num_inits]:
            active = self._requests.owner(int(plan["handle"][row]))
            self._sampler.assign_slot(int(plan["slot"][row]), active.request, active.prompt)

    def _rest(self) -> None:
        """Does, once after each time of work, what would hold up running requests."""
        if self._rested:
            return
        self._rested = True
        self._core.check_invariants()
        gc.collect()

    def _stats(self) -> CoreStats:
        return CoreStats(
            **self._core.stats(),
            num_finished_total=dict(self._requests.num_finished),
            step_time_ns=self._step_time_ns,
            schedule_time_ns=self._schedule_time_ns,
        )
