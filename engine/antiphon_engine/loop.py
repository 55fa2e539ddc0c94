"""The engine's one thread: receive, plan, execute, commit, publish, step after step.

With steps ahead, a step is planned and launched before an earlier one's tokens are waited for; the
device reads there what the host doesn't know yet. Without, each step is done before the next.
`RunAhead` says which.
"""

import gc
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.api.messages import (
    Answer,
    Cancel,
    CloseSession,
    CoreStats,
    FinishOutput,
    FinishReason,
    FlushPrefixCache,
    ForkSession,
    Hold,
    MatchPrefix,
    OutputEnded,
    ReadStats,
    Release,
    RewindSession,
    Shutdown,
    StepNews,
    Submit,
    ToEngine,
)
from antiphon_engine.arrivals import Arrivals
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.guidance import Guidance, has_guided_rows
from antiphon_engine.link import FrontEndGoneError, MessageLink
from antiphon_engine.prompt_reports import PromptReports, StepReport, scored_tokens
from antiphon_engine.requests import Requests
from antiphon_engine.run_ahead import RunAhead
from antiphon_engine.sampler import Sampled, StepSampler
from antiphon_engine.step_executor import StepBuffers, StepExecutor
from antiphon_engine.step_news import StepLogprobs, collect_news
from antiphon_engine.step_parts import PartWatch, StepPart, ignore_part

_log = structlog.get_logger(__name__)

IDLE_WAIT_S = 1.0
BLOCKED_WAIT_S = 0.01
"""Between plans that find nothing to run although requests wait; the core ends it after some."""
ARRIVAL_WAIT_S = 0.001
"""Between looks for requests whose grammars are being compiled, or whose masks are made ahead."""
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What a loop drives; nothing else touches it while the loop runs."""

    core: _native.EngineCore
    """With its buffers registered."""
    executor: StepExecutor
    sampler: StepSampler
    requests: Requests
    arrivals: Arrivals
    guidance: Guidance
    run_ahead: RunAhead

    def close(self) -> None:
        """Lets go of threads, behind the last step."""
        self.arrivals.close()
        self.guidance.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How the loop runs."""

    num_buffer_sets: int
    delay_commit_s: float
    """A fault on purpose: how long each step's results wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A step that is launched and not committed."""

    step_id: int
    set_index: int
    logprobs: StepLogprobs
    late_rows: NDArray[np.int64]
    """Those that bring no token, since their masks were not there."""
    start_ns: int
    plan_time_ns: int


class EngineLoop:
    """Runs requests until it is told to stop or its front end is gone."""

    def __init__(
        self,
        parts: EngineParts,
        link: MessageLink,
        settings: LoopSettings,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        watch: PartWatch = ignore_part,
    ) -> None:
        self._core = parts.core
        self._executor = parts.executor
        self._sampler = parts.sampler
        self._requests = parts.requests
        self._arrivals = parts.arrivals
        self._guidance = parts.guidance
        self._run_ahead = parts.run_ahead
        self._reports = PromptReports(parts.requests)
        self._link = link
        self._settings = settings
        self._clock_ns = clock_ns
        self._watch = watch
        self._flights: deque[_Flight] = deque()
        self._set_index = 0
        self._busy = False
        self._rested = True
        self._stopped = False
        self._step_time_ns = 0
        self._schedule_time_ns = 0
        self._retired_ns = 0
        self._waited_ns = 0
        self._overlapped_ns = 0

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
        except _native.StalledError as error:
            _log.error("engine stalled", census=str(error), request_ids=self._requests.active_ids)
            raise
        except Exception:
            _log.exception("engine failed", request_ids=self._requests.active_ids)
            raise
        finally:
            self._arrivals.close()
            self._guidance.close()

    @property
    def busy(self) -> bool:
        """Whether the last pass ran or ended a step, so that the next one will not wait."""
        return self._busy

    def run_once(self) -> None:
        """Takes what has come and runs a step if it can; waits a little where there is nothing.

        Raises:
            FrontEndGoneError: there is nobody left to work for.
            Exception: a step failed.
        """
        self._watch(StepPart.RECEIVE)
        self._receive()
        self._step()

    def _receive(self) -> None:
        messages = self._link.receive(self._wait_s())
        if not messages and not self._busy and not self._guidance.is_at_work:
            self._rest()
        ended: list[OutputEnded] = []
        for message in messages:
            ended += self._handle(message)
        # Told before the next step, which may take long.
        if ended:
            now = self._clock_ns()
            self._link.send(StepNews(step=0, start_ns=now, end_ns=now, ended=ended))
        for failed in self._arrivals.admit() + self._guidance.advance():
            self._link.send(failed)

    def _wait_s(self) -> float:
        if self._busy:
            return 0.0
        if self._arrivals or self._guidance.is_at_work:
            return ARRIVAL_WAIT_S
        return BLOCKED_WAIT_S if self._requests.may_run else IDLE_WAIT_S

    def _handle(self, message: ToEngine) -> list[OutputEnded]:
        """Does what a message asks and returns the outputs that this ended."""
        match message:
            case Submit():
                self._run_ahead.note_request()
                failed = self._arrivals.submit(
                    message.request_id,
                    message.request,
                    arrival_ns=self._clock_ns(),
                    is_overloaded=self._guidance.is_overloaded,
                )
                if failed is not None:
                    self._link.send(failed)
            case Cancel():
                return self._arrivals.end(
                    message.request_id, FinishReason.CANCELLED
                ) or self._requests.cancel(message.request_id)
            case FinishOutput():
                ended = self._requests.finish_output(
                    message.request_id, message.output_index, keep_tokens=message.keep_tokens
                )
                if ended is not None:
                    return [ended]
                return self._arrivals.end(
                    message.request_id,
                    FinishReason.FINISHED_BY_CALLER,
                    num_tokens=message.keep_tokens,
                )
            case Hold():
                self._arrivals.hold(message.request_id)
                self._requests.hold(message.request_id)
            case Release():
                self._arrivals.release(message.request_id)
                self._requests.release(message.request_id)
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
            case CloseSession() | ForkSession() | RewindSession():
                self._requests.hint(message)
            case Shutdown():
                self._stopped = True
        return []

    def _step(self) -> None:
        """Launches the next step if there is one, and takes in those that have had their time."""
        start_ns = self._clock_ns()
        self._waited_ns = 0
        launched = self._launch()
        num_flights = len(self._flights)
        # Where nothing could be planned, what the oldest brings may change that.
        num_left = num_flights - 1
        if launched:
            num_left = self._run_ahead.num_steps(self._count_waiting)
        while self._flights and len(self._flights) > num_left:
            self._retire(self._flights.popleft())
        if launched:
            host_ns = self._clock_ns() - start_ns - self._waited_ns - self._overlapped_ns
            self._run_ahead.note_step(step_ns=self._step_time_ns, host_ns=host_ns)
        self._busy = launched or num_flights > 0
        self._rested = self._rested and not self._busy

    def _count_waiting(self) -> int:
        return int(self._core.stats()["num_waiting"])

    def _launch(self) -> bool:
        """Plans a step and has it computed; returns whether there was one."""
        self._watch(StepPart.PLAN)
        start_ns = self._clock_ns()
        set_index = self._set_index
        step_id = self._core.plan(set_index, start_ns)
        if not step_id:
            return False
        plan = self._executor.buffers(set_index)
        planned_ns = self._clock_ns()
        self._watch(StepPart.PREPARE)
        self._assign_slots(plan)
        self._watch(StepPart.LAUNCH)
        sampled, late_rows = self._compute(set_index, plan)
        self._overlapped_ns = self._executor.overlapped_ns(set_index)
        logprobs = StepLogprobs(rows=sampled.logprobs, prompts=self._score(set_index, plan))
        self._executor.store_tokens(set_index, sampled.tokens)
        self._flights.append(
            _Flight(
                step_id=step_id,
                set_index=set_index,
                logprobs=logprobs,
                late_rows=late_rows,
                start_ns=start_ns,
                plan_time_ns=planned_ns - start_ns,
            )
        )
        self._set_index = (set_index + 1) % self._settings.num_buffer_sets
        return True

    def _compute(self, set_index: int, plan: StepBuffers) -> tuple[Sampled, NDArray[np.int64]]:
        """Has a planned step computed; returns its tokens, and the rows whose don't count."""
        if not has_guided_rows(plan):
            logits = self._executor.execute(set_index)
            return self._sample(set_index, plan, logits, None), _NO_ROWS
        stands_on_flights = bool(self._flights)
        if not stands_on_flights:
            # Masks are made beside the computation.
            self._guidance.begin(plan)
        logits = self._executor.execute(set_index)
        if stands_on_flights:
            # What may come next depends on tokens that are not there yet.
            while self._flights:
                self._retire(self._flights.popleft())
            self._watch(StepPart.LAUNCH)
            self._guidance.begin(plan)
        guided = self._guidance.finish()
        for failure in guided.failed:
            self._link.send(failure)
        return self._sample(set_index, plan, logits, guided.masks), guided.late_rows

    def _sample(
        self, set_index: int, plan: StepBuffers, logits: Tensor, masks: StepMasks | None
    ) -> Sampled:
        likeliest = self._executor.likeliest(set_index)
        return self._sampler.sample(logits, plan, masks, likeliest=likeliest)

    def _score(self, set_index: int, plan: StepBuffers) -> StepReport | None:
        """Has the tokens of prompts scored where somebody wants that."""
        parts = self._reports.parts_of(plan)
        if not parts:
            return None
        return StepReport(parts=parts, scores=self._executor.score(set_index, scored_tokens(parts)))

    def _retire(self, flight: _Flight) -> None:
        """Waits for a step, commits it and tells what it brought."""
        self._watch(StepPart.WAIT)
        wait_ns = self._clock_ns()
        self._executor.wait(flight.set_index)
        if self._settings.delay_commit_s:
            time.sleep(self._settings.delay_commit_s)
        self._watch(StepPart.COMMIT)
        executed_ns = self._clock_ns()
        self._waited_ns += executed_ns - wait_ns
        plan = self._executor.buffers(flight.set_index)
        plan["num_tokens"][flight.late_rows] = 0
        self._core.commit(flight.step_id, executed_ns)
        committed_ns = self._clock_ns()
        self._guidance.note_tokens(plan, flight.late_rows)
        self._watch(StepPart.PUBLISH)
        # Not before all work on it but the telling: the front end goes by how late it reads it.
        end_ns = self._clock_ns()
        news = collect_news(
            plan,
            flight.logprobs,
            self._requests,
            start_ns=flight.start_ns,
            end_ns=end_ns,
        )
        self._link.send(news)
        self._schedule_time_ns = flight.plan_time_ns + committed_ns - executed_ns
        now_ns = self._clock_ns()
        # Steps that overlap take the time from one's end to the next's.
        self._step_time_ns = now_ns - max(flight.start_ns, self._retired_ns)
        self._retired_ns = now_ns

    def _assign_slots(self, plan: StepBuffers) -> None:
        num_inits = int(plan["header"][_native.HEADER_NUM_SLOT_INITS])
        for row in plan["slot_init"][:num_inits]:
            handle = int(plan["handle"][row])
            active = self._requests.owner(handle)
            assert active is not None, f"core request {handle} has ended and is planned"
            rested = bool(plan["flags"][row] & _native.FLAG_RESUMED)
            prompt, output = self._requests.split_tokens(handle, has_output=rested)
            self._sampler.assign_slot(
                int(plan["slot"][row]), active.request, prompt=prompt, output=output
            )

    def _rest(self) -> None:
        """Does, once after each time of work, what would hold up running requests."""
        if self._rested:
            return
        self._rested = True
        self._core.check_invariants()
        gc.collect()

    def _stats(self) -> CoreStats:
        core = self._core.stats()
        # The core doesn't know of those that wait for their grammars.
        core["num_waiting"] += len(self._arrivals)
        return CoreStats(
            **core,
            **self._guidance.counters,
            num_guides=self._arrivals.num_guides,
            num_finished_total=dict(self._requests.num_finished),
            step_time_ns=self._step_time_ns,
            schedule_time_ns=self._schedule_time_ns,
        )
