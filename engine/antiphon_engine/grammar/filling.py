"""Fills the masks of a step on threads of its own, beside the forward pass.

A grammar that takes too long for one token fails its request: it is measured in processor time, so
a busy machine fails nobody. What is under way inside of a library can't be stopped: its thread is
left behind, and another takes its place.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.grammar.base import GrammarError
from antiphon_engine.grammar.guide import Guide

_LOOK_AGAIN_S = 0.005
_HARD_LIMIT_S = 10.0
MAX_LEFT_BEHIND = 8
"""Threads that may be at work on tokens of requests that have failed."""


@dataclass(slots=True, kw_only=True, eq=False)
class FillTask:
    """A row of a step whose output is guided."""

    guide: Guide
    row: int
    """Of the mask table."""
    restricts: bool = field(default=True, init=False)
    """False: every token may come next, and the row says nothing."""
    error: GrammarError | None = field(default=None, init=False)


class MaskFiller:
    """Owns the mask table. `start` and `finish` are called by one thread, in turn."""

    def __init__(
        self, *, num_rows: int, num_words: int, num_threads: int, step_limit_s: float
    ) -> None:
        self.table = np.zeros((num_rows, num_words), np.int32)
        self.fill_time_ns = 0
        """Processor time that masks have taken."""
        self.num_filled = 0
        self.num_matched = 0
        """Tokens by which matchers were advanced, each once."""
        self._num_threads = num_threads
        self._step_limit_s = step_limit_s
        self._changed = threading.Condition()
        self._waiting: deque[FillTask] = deque()
        self._num_open = 0
        self._workers: list[_Worker] = []
        self._left_behind: list[_Worker] = []
        self._closed = False

    @property
    def is_overloaded(self) -> bool:
        """Whether too many threads are busy with what nobody waits for."""
        self._left_behind = [worker for worker in self._left_behind if worker.thread.is_alive()]
        return len(self._left_behind) >= MAX_LEFT_BEHIND

    def start(self, tasks: Sequence[FillTask]) -> None:
        """Begins to fill the rows of `tasks`; each has a row and a guide of its own."""
        while len(self._workers) < min(self._num_threads, len(tasks)):
            self._workers.append(self._hire())
        with self._changed:
            self._waiting.extend(tasks)
            self._num_open += len(tasks)
            self._changed.notify_all()

    def finish(self) -> None:
        """Waits until every row is filled or its task has an error."""
        deadline = time.monotonic() + _HARD_LIMIT_S
        with self._changed:
            while self._num_open:
                if self._changed.wait(_LOOK_AGAIN_S):
                    continue
                for worker in [*self._workers]:
                    late = time.monotonic() > deadline
                    if worker.task is not None and (late or worker.is_over(self._step_limit_s)):
                        self._leave_behind(worker)
                    elif not worker.thread.is_alive():
                        raise RuntimeError("a thread that fills masks has died")

    def close(self) -> None:
        """Lets the threads end. Those that are at work end behind it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _hire(self) -> "_Worker":
        worker = _Worker()
        worker.thread = threading.Thread(
            target=self._work, args=(worker,), name="mask filler", daemon=True
        )
        worker.thread.start()
        return worker

    def _leave_behind(self, worker: "_Worker") -> None:
        assert worker.task is not None
        worker.task.error = self._too_complex()
        worker.task = None
        self._num_open -= 1
        self._workers.remove(worker)
        self._left_behind.append(worker)
        self._workers.append(self._hire())

    def _fault_of(self, used_s: float) -> GrammarError | None:
        return self._too_complex() if used_s > self._step_limit_s else None

    def _too_complex(self) -> GrammarError:
        limit_ms = round(1000 * self._step_limit_s)
        return GrammarError(
            ErrorReason.CONSTRAINT_TOO_COMPLEX,
            f"The constraint took more than {limit_ms} ms for one token; simplify it, or raise "
            "engine.grammar_step_limit_ms.",
            metadata={"limit_ms": str(limit_ms)},
        )

    def _work(self, worker: "_Worker") -> None:
        scratch = np.zeros((1, self.table.shape[1]), np.int32)
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                task = worker.begin(self._waiting.popleft())
            error = _fill(task, scratch)
            with self._changed:
                if worker.task is not task:
                    return
                used_s = worker.used_s()
                task.error = error or self._fault_of(used_s)
                self._keep(task, scratch, used_s)
                worker.task = None
                self._num_open -= 1
                if not self._num_open:
                    self._changed.notify_all()

    def _keep(self, task: FillTask, scratch: NDArray[np.int32], used_s: float) -> None:
        self.table[task.row] = scratch[0]
        self.num_matched += task.guide.take_num_matched()
        self.fill_time_ns += round(1e9 * used_s)
        self.num_filled += 1


class _Worker:
    """A thread that fills masks, and what it is at."""

    def __init__(self) -> None:
        self.thread = threading.Thread()
        self.task: FillTask | None = None
        """None where it rests, or where nobody waits for what it does."""
        self._begin_s = 0.0

    def begin(self, task: FillTask) -> FillTask:
        """Notes that the calling thread, which is this worker's, begins with a task."""
        self.task = task
        self._begin_s = time.thread_time()
        return task

    def used_s(self) -> float:
        """Returns the processor time of the task so far; called by this worker's thread."""
        return time.thread_time() - self._begin_s

    def is_over(self, limit_s: float) -> bool:
        """Returns whether its task has used more processor time than that."""
        if self.thread.ident is None or not self.thread.is_alive():
            return False
        clock_id = time.pthread_getcpuclockid(self.thread.ident)
        return time.clock_gettime(clock_id) - self._begin_s > limit_s


def _fill(task: FillTask, scratch: NDArray[np.int32]) -> GrammarError | None:
    try:
        task.guide.catch_up()
        task.restricts = task.guide.restricts
        if task.restricts:
            task.guide.fill(scratch)
    except GrammarError as error:
        return error
    return None
