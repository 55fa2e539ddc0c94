"""Guides the rows of steps: their masks before tokens are drawn, and what was drawn behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon_engine import _native
from antiphon_engine.api.messages import RequestFailed
from antiphon_engine.grammar.filling import FillTask, MaskFiller
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.requests import Requests
from antiphon_engine.step_executor import StepBuffers


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuidedRow:
    """A row of the step that is planned last."""

    sample: int
    """Which of the sampled rows it is."""
    handle: int
    task: FillTask


class Guidance:
    """What holds for the tokens of guided rows. Used by the engine's one thread.

    A row's mask needs the tokens before it: `begin` comes when they are committed.
    """

    def __init__(self, requests: Requests, filler: MaskFiller) -> None:
        self._requests = requests
        self._filler = filler
        self._rows: Sequence[_GuidedRow] = ()

    @property
    def counters(self) -> dict[str, int]:
        """What CoreStats has of guided requests."""
        return {
            "num_matched_tokens_total": self._filler.num_matched,
            "num_masks_total": self._filler.num_filled,
            "mask_time_ns_total": self._filler.fill_time_ns,
        }

    @property
    def is_overloaded(self) -> bool:
        """Whether no more guided requests should come for now."""
        return self._filler.is_overloaded

    def close(self) -> None:
        """Lets the threads that make masks end."""
        self._filler.close()

    def begin(self, plan: StepBuffers) -> None:
        """Begins to make the masks of a planned step; `finish` is to follow."""
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        sampled = np.nonzero(np.diff(plan["sample_indptr"][: num_rows + 1]))[0]
        rows: list[_GuidedRow] = []
        for sample in np.nonzero(plan["flags"][sampled] & _native.FLAG_GUIDED)[0].tolist():
            handle = int(plan["handle"][sampled[sample]])
            guide = self._requests.guide(handle)
            # A request that has ended while its row was planned gets nothing of it.
            if guide is not None:
                task = FillTask(guide=guide, row=len(rows))
                rows.append(_GuidedRow(sample=sample, handle=handle, task=task))
        self._rows = rows
        if rows:
            self._filler.start([row.task for row in rows])

    def finish(self) -> tuple[StepMasks | None, list[RequestFailed]]:
        """Returns the masks, None where nothing is masked, and the requests that failed."""
        if not self._rows:
            return None, []
        self._filler.finish()
        masked = [row for row in self._rows if row.task.error is None and row.task.restricts]
        failed = []
        for row in self._rows:
            # Another output of its request may have failed before it.
            if row.task.error is not None and self._requests.owner(row.handle) is not None:
                failed.append(self._requests.fail(row.handle, row.task.error))
        self._rows = ()
        if not masked:
            return None, failed
        masks = StepMasks(
            rows=np.array([row.sample for row in masked], np.int64),
            words=self._filler.table[[row.task.row for row in masked]],
        )
        return masks, failed

    def note_tokens(self, plan: StepBuffers) -> None:
        """Notes what a committed step has brought. Outputs that ended there are not looked at."""
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        result = plan["result"][:num_rows]
        goes_on = (result[:, 0] > 0) & (result[:, 1] == _native.FINISH_NONE)
        for row in np.nonzero((plan["flags"][:num_rows] & _native.FLAG_GUIDED != 0) & goes_on)[0]:
            guide = self._requests.guide(int(plan["handle"][row]))
            if guide is not None:
                guide.note(int(plan["tokens"][row, 0]))


def has_guided_rows(plan: StepBuffers) -> bool:
    """Returns whether a planned step has rows of guided requests."""
    num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
    return bool((plan["flags"][:num_rows] & _native.FLAG_GUIDED).any())
