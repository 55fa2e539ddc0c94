"""Fills masks on threads of its own: those of a step beside its forward pass, long ones ahead.

A step doesn't wait for a mask that takes long: its row brings no token then, and the mask is made
by threads of lower priority while other rows go on. What takes long and what takes too long is
measured in processor time, so a busy machine fails nobody. What is under way inside of a library
can't be stopped: a thread that is over the limit is left behind, and another takes its place.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.priority import lower, lower_to_leftovers
from antiphon_engine.grammar.base import GrammarError, without_frames
from antiphon_engine.grammar.guide import Guide
from antiphon_engine.grammar.token_clock import MAX_LEFT_BEHIND, TokenClock, too_complex

_LOOK_AGAIN_S = 0.002
_LONG_S = 0.005
"""Processor time from which a mask holds up a step noticeably."""
_LONGEST_WAIT_S = 0.015
"""For what a step waits behind its computation where masks take long ..."""
_LONGEST_BUSY_WAIT_S = 0.1
"""... and where it may be that the machine is busy."""
_NICE_BESIDE = 5
"""Masks are made while the model computes, which has the processor first."""
_NICE_AHEAD = 15


@dataclass(slots=True, kw_only=True, eq=False)
class FillTask:
    """A mask that is wanted for the next token of a guided output."""

    guide: Guide
    row: int = -1
    """Of the mask table, while a step waits for it."""
    awaited: bool = field(default=False, init=False)
    """Whether a step waits for it."""
    done: bool = field(default=False, init=False)
    """Whether the rest holds."""
    restricts: bool = field(default=True, init=False)
    """False: every token may come next, and the mask says nothing."""
    words: NDArray[np.int32] | None = field(default=None, init=False)
    """[W] the mask, where no step waited for it when it was done; else it is in the table."""
    error: GrammarError | None = field(default=None, init=False)


class MaskFiller:
    """Owns the mask table. All calls come from one thread."""

    def __init__(
        self, *, num_rows: int, num_words: int, num_threads: int, step_limit_s: float
    ) -> None:
        self.table = np.zeros((num_rows, num_words), np.int32)
        self.fill_time_ns = 0
        """Processor time that masks have taken."""
        self.num_filled = 0
        self.num_late = 0
        """Masks that a step did not wait for."""
        self.num_matched = 0
        """Tokens by which matchers were advanced, each once."""
        self._step_limit_s = step_limit_s
        self._changed = threading.Condition()
        self._beside = _Lane(num_threads)
        """Those that steps wait for."""
        self._ahead = _Lane(max(1, num_threads // 2))
        """Those that are known to take long."""
        self._num_awaited = 0
        self._left_behind: list[_Worker] = []
        self._closed = False

    @property
    def is_overloaded(self) -> bool:
        """Whether too many threads are busy with what nobody waits for."""
        self._left_behind = [worker for worker in self._left_behind if worker.thread.is_alive()]
        return len(self._left_behind) >= MAX_LEFT_BEHIND

    def start(self, tasks: Sequence[FillTask]) -> None:
        """Begins to fill the rows of `tasks`, each with a row and a guide of its own.

        `finish` is to follow.
        """
        for task in tasks:
            task.awaited = True
        with self._changed:
            self._beside.waiting.extend(tasks)
            self._num_awaited += len(tasks)
            self._man(self._beside)
            self._changed.notify_all()

    def finish(self) -> None:
        """Waits until every row of the step is filled, or until it would take too long."""
        begun = time.monotonic()
        deadline = begun + _LONGEST_BUSY_WAIT_S
        with self._changed:
            while self._num_awaited:
                if self._set_long_ones_aside():
                    deadline = min(deadline, begun + _LONGEST_WAIT_S)
                if time.monotonic() >= deadline:
                    self._expect_no_more()
                elif self._num_awaited:
                    self._changed.wait(_LOOK_AGAIN_S)

    def start_ahead(self, task: FillTask) -> None:
        """Begins to make a mask that no step waits for."""
        with self._changed:
            self._ahead.waiting.append(task)
            self._man(self._ahead)
            self._changed.notify_all()

    def look(self) -> None:
        """Ends what is over its limit. To be called often while a task is not done."""
        with self._changed:
            for lane in (self._beside, self._ahead):
                for worker in [*lane.workers]:
                    if not worker.thread.is_alive():
                        raise RuntimeError("a thread that fills masks has died")
                    if worker.task is None or worker.clock is None:
                        continue
                    excused_s = worker.clock.excused_s()
                    if worker.clock.is_over(self._step_limit_s, excused_s=excused_s):
                        worker.task.error = too_complex(self._step_limit_s)
                        self._leave_behind(worker)
                self._man(lane)

    def drop(self, task: FillTask) -> None:
        """Notes that nobody wants a task any more that no step waits for."""
        with self._changed:
            for lane in (self._beside, self._ahead):
                if task in lane.waiting:
                    lane.waiting.remove(task)
                for worker in [*lane.workers]:
                    if worker.task is task:
                        self._leave_behind(worker)

    def close(self) -> None:
        """Lets the threads end. Those that are at work end behind it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _man(self, lane: "_Lane") -> None:
        """Sees to it that what waits in a lane is taken up."""
        # Masks that take long may not fill the machine with threads, whoever else has to wait.
        if len(self._ahead.workers) >= MAX_LEFT_BEHIND:
            return
        num_wanted = len(lane.waiting) + sum(worker.task is not None for worker in lane.workers)
        while len(lane.workers) < min(lane.max_workers, num_wanted):
            worker = _Worker(lane, _NICE_AHEAD if lane is self._ahead else _NICE_BESIDE)
            worker.thread = threading.Thread(
                target=self._work, args=(worker,), name="mask filler", daemon=True
            )
            lane.workers.append(worker)
            worker.thread.start()

    def _set_long_ones_aside(self) -> bool:
        """Lets the step go on without what takes long; returns whether something did."""
        long_ones = [
            worker
            for worker in self._beside.workers
            if worker.task is not None and worker.clock is not None
            if worker.clock.is_over(_LONG_S)
        ]
        for worker in long_ones:
            assert worker.task is not None
            self._expect_no_more_of(worker.task)
            self._beside.workers.remove(worker)
            self._ahead.workers.append(worker)
            worker.lane = self._ahead
            lower(worker.thread, _NICE_AHEAD)
        self._man(self._beside)
        return bool(long_ones)

    def _expect_no_more(self) -> None:
        for task in self._beside.waiting:
            self._expect_no_more_of(task)
        for worker in self._beside.workers:
            if worker.task is not None:
                self._expect_no_more_of(worker.task)

    def _expect_no_more_of(self, task: FillTask) -> None:
        self.num_late += task.awaited
        self._num_awaited -= task.awaited
        task.awaited = False

    def _leave_behind(self, worker: "_Worker") -> None:
        assert worker.task is not None
        self._expect_no_more_of(worker.task)
        worker.task.done = True
        worker.task = worker.clock = None
        worker.lane.workers.remove(worker)
        lower_to_leftovers(worker.thread)
        self._left_behind.append(worker)

    def _work(self, worker: "_Worker") -> None:
        lower(worker.thread, worker.niceness)
        scratch = np.zeros((1, self.table.shape[1]), np.int32)
        while True:
            with self._changed:
                task = self._next(worker)
            if task is None:
                return
            error = _fill(task, scratch)
            with self._changed:
                if worker.task is not task:
                    return
                self._keep(worker, scratch, error)
            # A thread that waits for its next task keeps nothing of the last request.
            del task, error

    def _next(self, worker: "_Worker") -> FillTask | None:
        """Waits for a task; None: the thread is to end."""
        while not self._closed and len(worker.lane.workers) <= worker.lane.max_workers:
            if worker.lane.waiting:
                return worker.begin(worker.lane.waiting.popleft())
            self._changed.wait()
        worker.lane.workers.remove(worker)
        return None

    def _keep(
        self, worker: "_Worker", scratch: NDArray[np.int32], error: GrammarError | None
    ) -> None:
        task, clock = worker.task, worker.clock
        assert task is not None
        assert clock is not None
        used_s = clock.used_s()
        if error is None and used_s - clock.excused_s() > self._step_limit_s:
            error = too_complex(self._step_limit_s)
        task.error = error
        if task.awaited:
            self.table[task.row] = scratch[0]
        else:
            task.words = scratch[0].copy()
        task.guide.takes_long = used_s > _LONG_S
        self.num_matched += task.guide.take_num_matched()
        self.fill_time_ns += round(1e9 * used_s)
        self.num_filled += 1
        task.done = True
        worker.task = worker.clock = None
        self._num_awaited -= task.awaited
        if not self._num_awaited:
            self._changed.notify_all()


class _Lane:
    """Tasks that wait, and the threads that take them in turn."""

    def __init__(self, max_workers: int) -> None:
        self.max_workers = max_workers
        self.waiting: deque[FillTask] = deque()
        self.workers: list[_Worker] = []


class _Worker:
    """A thread that fills masks, and what it is at."""

    def __init__(self, lane: _Lane, niceness: int) -> None:
        self.lane = lane
        self.niceness = niceness
        self.thread = threading.Thread()
        self.task: FillTask | None = None
        """None where it rests, or where nobody waits for what it does."""
        self.clock: TokenClock | None = None
        """Of its task."""

    def begin(self, task: FillTask) -> FillTask:
        """Notes that the calling thread, which is this worker's, begins with a task."""
        self.task = task
        self.clock = TokenClock(self.thread, task.guide)
        return task


def _fill(task: FillTask, scratch: NDArray[np.int32]) -> GrammarError | None:
    try:
        task.guide.catch_up()
        task.restricts = task.guide.restricts
        if task.restricts:
            task.guide.fill(scratch)
    except GrammarError as error:
        return without_frames(error)
    return None
