"""Guides the rows of steps: their masks before tokens are drawn, and what was drawn behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.messages import RequestFailed
from antiphon_engine.grammar.filling import FillTask, MaskFiller
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.requests import Requests
from antiphon_engine.step_executor import StepBuffers, row_flags, sampled_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedStep:
    """What guides a step that is computed."""

    masks: StepMasks | None
    """None where nothing is masked."""
    late_rows: NDArray[np.int64]
    """Rows of the step that bring no token, since their masks are not there."""
    failed: list[RequestFailed]


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuidedRow:
    """A row of the step that is planned last."""

    row: int
    sample: int
    """Which of the sampled rows it is."""
    handle: int
    task: FillTask


@dataclass(slots=True, kw_only=True)
class _Ahead:
    """A mask that is made between rows, while its output sits out."""

    task: FillTask
    settled: bool
    """Whether no row of the output is in flight."""


class Guidance:
    """What holds for the tokens of guided rows. Used by the engine's one thread.

    A row's mask needs the tokens before it: `begin` comes when they are committed. Masks are made
    beside the computation of their rows. One that takes long holds up nobody: its row brings no
    token, its output sits out until the mask is there, and so it does before each row as long as
    its masks take long.
    """

    def __init__(self, requests: Requests, filler: MaskFiller) -> None:
        self._requests = requests
        self._filler = filler
        self._rows: Sequence[_GuidedRow] = ()
        self._ahead: dict[int, _Ahead] = {}
        """By core request."""

    @property
    def counters(self) -> dict[str, int]:
        """What CoreStats has of guided requests."""
        return {
            "num_matched_tokens_total": self._filler.num_matched,
            "num_masks_total": self._filler.num_filled,
            "num_late_masks_total": self._filler.num_late,
            "mask_time_ns_total": self._filler.fill_time_ns,
        }

    @property
    def is_overloaded(self) -> bool:
        """Whether no more guided requests should come for now."""
        return self._filler.is_overloaded

    @property
    def is_at_work(self) -> bool:
        """Whether outputs sit out until their masks are there."""
        return bool(self._ahead)

    def close(self) -> None:
        """Lets the threads that make masks end."""
        self._filler.close()

    def advance(self) -> list[RequestFailed]:
        """Lets outputs go on whose masks are there; returns the requests that failed."""
        if not self._ahead:
            return []
        self._filler.look()
        failed = []
        for handle, ahead in list(self._ahead.items()):
            if self._requests.guide(handle) is None:
                self._filler.drop(ahead.task)
                del self._ahead[handle]
            elif ahead.task.done and ahead.settled:
                if ahead.task.error is not None:
                    failed.append(self._requests.fail(handle, ahead.task.error))
                    del self._ahead[handle]
                else:
                    self._requests.rejoin(handle)
        return failed

    def begin(self, plan: StepBuffers) -> None:
        """Begins to make the masks of a planned step; `finish` is to follow."""
        sampled = sampled_rows(plan)
        rows: list[_GuidedRow] = []
        tasks: list[FillTask] = []
        for sample in np.nonzero(plan["flags"][sampled] & _native.FLAG_GUIDED)[0].tolist():
            row = int(sampled[sample])
            handle = int(plan["handle"][row])
            guide = self._requests.guide(handle)
            # A request that has ended while its row was planned gets nothing of it.
            if guide is None:
                continue
            if (ahead := self._ahead.pop(handle, None)) is not None:
                assert ahead.task.done, "a row was planned while its output sits out"
                task = ahead.task
            else:
                task = FillTask(guide=guide, row=len(tasks))
                tasks.append(task)
            rows.append(_GuidedRow(row=row, sample=sample, handle=handle, task=task))
        self._rows = rows
        if tasks:
            self._filler.start(tasks)

    def finish(self) -> GuidedStep:
        """Waits for the masks, but not for long."""
        if not self._rows:
            return GuidedStep(masks=None, late_rows=np.zeros(0, np.int64), failed=[])
        self._filler.finish()
        masked, late, failed = [], [], []
        for row in self._rows:
            if not row.task.done:
                late.append(row)
                self._ahead[row.handle] = _Ahead(task=row.task, settled=False)
                self._requests.sit_out(row.handle)
            elif row.task.error is not None:
                # Another output of its request may have failed before it.
                if self._requests.owner(row.handle) is not None:
                    failed.append(self._requests.fail(row.handle, row.task.error))
            else:
                if row.task.restricts:
                    masked.append(row)
                if row.task.guide.takes_long:
                    self._requests.sit_out(row.handle)
        self._rows = ()
        return GuidedStep(
            masks=self._masks(masked, late) if masked or late else None,
            late_rows=np.array([row.row for row in late], np.int64),
            failed=failed,
        )

    def note_tokens(self, plan: StepBuffers, late_rows: NDArray[np.int64]) -> None:
        """Notes what a committed step has brought. Outputs that ended there are not looked at.

        Args:
            plan: The step's.
            late_rows: As `finish` told them.
        """
        for row in late_rows:
            if (ahead := self._ahead.get(int(plan["handle"][row]))) is not None:
                ahead.settled = True
        if not has_guided_rows(plan):
            return
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        result = plan["result"][:num_rows]
        goes_on = (result[:, 0] > 0) & (result[:, 1] == _native.FINISH_NONE)
        for row in np.nonzero((plan["flags"][:num_rows] & _native.FLAG_GUIDED != 0) & goes_on)[0]:
            handle = int(plan["handle"][row])
            guide = self._requests.guide(handle)
            if guide is None:
                continue
            guide.note(int(plan["tokens"][row, 0]))
            if guide.takes_long:
                task = FillTask(guide=guide)
                self._ahead[handle] = _Ahead(task=task, settled=True)
                self._filler.start_ahead(task)

    def _masks(self, masked: Sequence[_GuidedRow], late: Sequence[_GuidedRow]) -> StepMasks:
        words = np.empty((len(masked), self._filler.table.shape[1]), np.int32)
        for place, row in enumerate(masked):
            own = row.task.words
            words[place] = self._filler.table[row.task.row] if own is None else own
        return StepMasks(
            rows=np.array([row.sample for row in masked], np.int64),
            words=words,
            late=np.array([row.sample for row in late], np.int64),
        )


def has_guided_rows(plan: StepBuffers) -> bool:
    """Returns whether a planned step has rows of guided requests."""
    return bool(row_flags(plan) & _native.FLAG_GUIDED)
