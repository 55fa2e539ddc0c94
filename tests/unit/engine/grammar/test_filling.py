"""Masks made by threads: rows that fail or take too long are nobody else's trouble."""

import os
import threading
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.messages import StopParams
from antiphon_engine.grammar.base import GrammarError, mask_words
from antiphon_engine.grammar.filling import MAX_LEFT_BEHIND, FillTask, MaskFiller
from antiphon_engine.grammar.guide import EndRules, Guide
from antiphon_engine.grammar.vocabulary import Vocabulary

VOCABULARY = Vocabulary(tokens=(b"a", b"b", b"c"), control_ids=frozenset())
NUM_WORDS = mask_words(VOCABULARY.size)


class ScriptedGuide(Guide):
    """Fills its row with a number, or fails."""

    def __init__(self, number: int, *, rejects: bool = False) -> None:
        rules = EndRules.of(StopParams(max_output_tokens=1), VOCABULARY)
        super().__init__(rules, matcher=None, backend=None, gate=None)
        self._number = number
        self._rejects = rejects

    @property
    def restricts(self) -> bool:
        return True

    def accept(self, token_id: int) -> None:
        if self._rejects:
            raise GrammarError(ErrorReason.INTERNAL, f"no place for {token_id}")

    def fill(self, table: NDArray[np.int32]) -> None:
        table[:] = self._number


class EndlessGuide(ScriptedGuide):
    """Takes longer than a step waits and than the least limit here, and until it is let go."""

    def __init__(self, number: int, let_go: threading.Event, ended: threading.Semaphore) -> None:
        super().__init__(number)
        self._let_go = let_go
        self._ended = ended
        self.thread_id = 0

    def fill(self, table: NDArray[np.int32]) -> None:
        self.thread_id = threading.get_native_id()
        end_s = time.thread_time() + 0.03
        while time.thread_time() < end_s:
            sum(range(100))
        self._let_go.wait()
        super().fill(table)
        self._ended.release()


class WatchingGuide(ScriptedGuide):
    """Notes how nice the thread is that fills its row."""

    niceness = 0

    def __init__(self) -> None:
        super().__init__(1)

    def fill(self, table: NDArray[np.int32]) -> None:
        self.niceness = niceness_of(threading.get_native_id())
        super().fill(table)


class BusyGuide(ScriptedGuide):
    """Computes for a while; by its own thread's clock, so that busy machines change nothing."""

    def __init__(self, number: int, cpu_s: float) -> None:
        super().__init__(number)
        self._cpu_s = cpu_s

    def fill(self, table: NDArray[np.int32]) -> None:
        end_s = time.thread_time() + self._cpu_s
        while time.thread_time() < end_s:
            sum(range(100))
        super().fill(table)


@pytest.fixture
def filler():
    filler = MaskFiller(num_rows=16, num_words=NUM_WORDS, num_threads=2, step_limit_s=1.0)
    yield filler
    filler.close()


def niceness_of(thread_id: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread_id)


def begun(filler: MaskFiller, *guides: Guide) -> list[FillTask]:
    """One step, whose masks may be late."""
    tasks = [FillTask(guide=guide, row=row) for row, guide in enumerate(guides)]
    filler.start(tasks)
    filler.finish()
    return tasks


def wait_for(filler: MaskFiller, *tasks: FillTask) -> None:
    while not all(task.done for task in tasks):
        filler.look()
        threading.Event().wait(0.002)


def filled(filler: MaskFiller, *guides: Guide) -> list[FillTask]:
    tasks = begun(filler, *guides)
    wait_for(filler, *tasks)
    return tasks


def number_of(filler: MaskFiller, task: FillTask) -> int:
    return int(filler.table[task.row, 0] if task.words is None else task.words[0])


def test_each_row_gets_the_mask_of_its_guide(filler: MaskFiller) -> None:
    for _ in range(50):
        tasks = filled(filler, *(ScriptedGuide(number) for number in range(1, 17)))

        assert [task.error for task in tasks] == [None] * 16
        assert [number_of(filler, task) for task in tasks] == list(range(1, 17))

    assert filler.num_filled == 50 * 16


def test_a_token_that_has_no_place_fails_its_row_alone(filler: MaskFiller) -> None:
    rejecting = ScriptedGuide(2, rejects=True)
    rejecting.note(5)

    tasks = filled(filler, ScriptedGuide(1), rejecting, ScriptedGuide(3))

    assert [task.error is None for task in tasks] == [True, False, True]
    assert [number_of(filler, tasks[0]), number_of(filler, tasks[2])] == [1, 3]


def test_a_step_does_not_wait_for_what_takes_long_and_later_steps_keep_their_masks(
    filler: MaskFiller,
) -> None:
    let_go, ended = threading.Event(), threading.Semaphore(0)
    endless = [EndlessGuide(99, let_go, ended) for _ in range(2)]

    late = begun(filler, *endless)

    assert not any(task.done for task in late)
    assert filler.num_late == 2
    tasks = filled(filler, *(ScriptedGuide(number) for number in range(1, 5)))
    let_go.set()
    wait_for(filler, *late)
    assert [number_of(filler, task) for task in tasks] == [1, 2, 3, 4]
    assert [number_of(filler, task) for task in late] == [99, 99]
    assert all(task.guide.takes_long for task in late)


def test_what_took_long_once_and_no_longer_does_is_waited_for_again(filler: MaskFiller) -> None:
    guide = BusyGuide(7, cpu_s=0.05)
    task = FillTask(guide=guide)
    filler.start_ahead(task)
    wait_for(filler, task)
    assert guide.takes_long

    (task,) = filled(filler, ScriptedGuide(8))

    assert not task.guide.takes_long


def test_what_takes_too_long_is_left_behind_and_disturbs_no_later_step() -> None:
    filler = MaskFiller(num_rows=16, num_words=NUM_WORDS, num_threads=2, step_limit_s=0.02)
    let_go, ended = threading.Event(), threading.Semaphore(0)
    endless = [EndlessGuide(99, let_go, ended) for _ in range(3)]

    tasks = filled(filler, *endless, ScriptedGuide(4))

    reasons = [task.error.reason for task in tasks if task.error is not None]
    assert reasons == [ErrorReason.CONSTRAINT_TOO_COMPLEX] * 3
    assert number_of(filler, tasks[3]) == 4
    filled(filler, *(ScriptedGuide(number) for number in range(1, 5)))
    let_go.set()
    for _ in endless:
        assert ended.acquire(timeout=30)
    tasks = filled(filler, *(ScriptedGuide(number) for number in range(1, 5)))
    assert [number_of(filler, task) for task in tasks] == [1, 2, 3, 4]
    filler.close()


def test_threads_give_way_to_steps_and_more_so_the_longer_they_take() -> None:
    filler = MaskFiller(num_rows=16, num_words=NUM_WORDS, num_threads=1, step_limit_s=0.02)
    let_go, ended = threading.Event(), threading.Semaphore(0)
    seen = WatchingGuide()

    filled(filler, seen)
    (ahead,) = begun(filler, endless := EndlessGuide(99, let_go, ended))
    while niceness_of(endless.thread_id) < 15:
        threading.Event().wait(0.002)
    wait_for(filler, ahead)
    left_behind = os.sched_getscheduler(endless.thread_id)

    assert ahead.error is not None
    assert 0 < seen.niceness < 15
    assert left_behind == os.SCHED_IDLE
    let_go.set()
    assert ended.acquire(timeout=30)
    filler.close()


def test_threads_left_behind_are_bounded() -> None:
    filler = MaskFiller(num_rows=16, num_words=NUM_WORDS, num_threads=2, step_limit_s=0.02)
    let_go, ended = threading.Event(), threading.Semaphore(0)
    assert not filler.is_overloaded

    filled(filler, *(EndlessGuide(99, let_go, ended) for _ in range(MAX_LEFT_BEHIND)))

    assert filler.is_overloaded
    let_go.set()
    for _ in range(MAX_LEFT_BEHIND):
        assert ended.acquire(timeout=30)
    while filler.is_overloaded:
        threading.Event().wait(0.01)
    filler.close()


def test_what_is_dropped_is_told_to_nobody_and_counts_as_left_behind(filler: MaskFiller) -> None:
    let_go, ended = threading.Event(), threading.Semaphore(0)
    late = begun(filler, *(EndlessGuide(99, let_go, ended) for _ in range(MAX_LEFT_BEHIND)))
    at_work = threading.active_count()

    for task in late:
        filler.drop(task)
    tasks = filled(filler, *(ScriptedGuide(number) for number in range(1, 5)))

    assert [number_of(filler, task) for task in tasks] == [1, 2, 3, 4]
    assert threading.active_count() <= at_work + 2
    let_go.set()


def test_masks_that_take_long_do_not_fill_the_machine_with_threads(filler: MaskFiller) -> None:
    let_go, ended = threading.Event(), threading.Semaphore(0)
    before = threading.active_count()

    late = [
        task
        for _ in range(8)
        for task in begun(filler, *(EndlessGuide(99, let_go, ended) for _ in range(4)))
    ]

    assert threading.active_count() - before <= MAX_LEFT_BEHIND + 2
    let_go.set()
    wait_for(filler, *late)
    assert [number_of(filler, task) for task in late] == [99] * 32
