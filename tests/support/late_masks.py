"""Fillers of masks that are not as quick as they could be."""

from collections.abc import Sequence

from antiphon_engine.grammar.filling import FillTask, MaskFiller


class LateFiller(MaskFiller):
    """No step ever waits for a mask: each row is computed twice."""

    def finish(self) -> None:
        with self._changed:
            self._expect_no_more()


class ReluctantFiller(MaskFiller):
    """Every mask that a step waits for is one that took long: the next is made ahead."""

    _begun: Sequence[FillTask] = ()

    def start(self, tasks: Sequence[FillTask]) -> None:
        self._begun = tasks
        super().start(tasks)

    def finish(self) -> None:
        super().finish()
        for task in self._begun:
            if task.done:
                task.guide.takes_long = True
        self._begun = ()
