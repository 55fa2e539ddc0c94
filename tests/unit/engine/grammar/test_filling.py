"""Masks made by threads: rows that fail or take too long are nobody else's trouble."""

import threading

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
    """Computes until it is let go."""

    def __init__(self, number: int, let_go: threading.Event, ended: threading.Semaphore) -> None:
        super().__init__(number)
        self._let_go = let_go
        self._ended = ended

    def fill(self, table: NDArray[np.int32]) -> None:
        while not self._let_go.is_set():
            sum(range(100))
        super().fill(table)
        self._ended.release()


@pytest.fixture
def filler():
    filler = MaskFiller(num_rows=16, num_words=NUM_WORDS, num_threads=2, step_limit_s=0.02)
    yield filler
    filler.close()


def filled(filler: MaskFiller, *guides: Guide) -> list[FillTask]:
    tasks = [FillTask(guide=guide, row=row) for row, guide in enumerate(guides)]
    filler.start(tasks)
    filler.finish()
    return tasks


def test_each_row_gets_the_mask_of_its_guide(filler: MaskFiller) -> None:
    for _ in range(50):
        tasks = filled(filler, *(ScriptedGuide(number) for number in range(1, 17)))

        assert [task.error for task in tasks] == [None] * 16
        assert filler.table[:, 0].tolist() == list(range(1, 17))

    assert filler.num_filled == 50 * 16


def test_a_token_that_has_no_place_fails_its_row_alone(filler: MaskFiller) -> None:
    rejecting = ScriptedGuide(2, rejects=True)
    rejecting.note(5)

    tasks = filled(filler, ScriptedGuide(1), rejecting, ScriptedGuide(3))

    assert [task.error is None for task in tasks] == [True, False, True]
    assert filler.table[[0, 2], 0].tolist() == [1, 3]


def test_what_takes_too_long_is_left_behind_and_disturbs_no_later_step(
    filler: MaskFiller,
) -> None:
    let_go, ended = threading.Event(), threading.Semaphore(0)
    endless = [EndlessGuide(99, let_go, ended) for _ in range(3)]

    tasks = filled(filler, *endless, ScriptedGuide(4))

    reasons = [task.error.reason for task in tasks if task.error is not None]
    assert reasons == [ErrorReason.CONSTRAINT_TOO_COMPLEX] * 3
    assert filler.table[3, 0] == 4
    filled(filler, *(ScriptedGuide(number) for number in range(1, 5)))
    let_go.set()
    for _ in endless:
        assert ended.acquire(timeout=30)
    filled(filler, *(ScriptedGuide(number) for number in range(1, 5)))
    assert filler.table[:4, 0].tolist() == [1, 2, 3, 4]


def test_threads_left_behind_are_bounded(filler: MaskFiller) -> None:
    let_go, ended = threading.Event(), threading.Semaphore(0)
    assert not filler.is_overloaded

    filled(filler, *(EndlessGuide(99, let_go, ended) for _ in range(MAX_LEFT_BEHIND)))

    assert filler.is_overloaded
    let_go.set()
    for _ in range(MAX_LEFT_BEHIND):
        assert ended.acquire(timeout=30)
    while filler.is_overloaded:
        threading.Event().wait(0.01)
