"""The last look at what an output says, before it is told as complete."""

import time
from collections.abc import Callable
from typing import Final

from antiphon.v1.types_pb2 import FinishReason, ToolCall

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.constraints.checker import ConstraintChecker
from antiphon_server.constraints.request import CheckedConstraint, ConstraintKind
from antiphon_server.constraints.tool_calls import calls_as_text
from antiphon_server.generation_output import OutputRecord
from antiphon_server.telemetry.request_record import Stage, StageKind

MAX_STAGES: Final = 16
"""So many looks at an output tell how long they took."""

_AS_IT_HAD_TO_BE: Final = frozenset(
    {FinishReason.FINISH_REASON_STOP, FinishReason.FINISH_REASON_TOOL_CALLS}
)
"""Ends of outputs that keep to their constraint."""


class LastLook:
    """Looks at one output: at each call as it is complete, however the output ends, and at the end.

    Both raise AntiphonError: CONSTRAINT_VIOLATED, the output has to fail; INTERNAL, nobody can say
    whether it is as it had to be.

    Attributes:
        stages: From when to when the first looks took place.
    """

    def __init__(
        self,
        checker: ConstraintChecker,
        constraint: CheckedConstraint | None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Sets what the output had to be like; None: nobody asked."""
        self.stages: Final[list[Stage]] = []
        self._clock_ns = clock_ns
        self._checker = checker
        self._constraint = constraint
        self._seen: str | None = None

    async def at_call(self, call: ToolCall) -> None:
        """Looks at a call that is complete."""
        await self._look(calls_as_text([call]))

    async def at_end(self, output: OutputRecord, whole_answer: Callable[[], str]) -> None:
        """Looks at an output that has ended.

        Args:
            output: It.
            whole_answer: Returns its answer, where it may not call tools.
        """
        if output.has_broken_call:
            self._checker.num_violations += 1
            raise _broken_call(output.index)
        if output.finish_reason not in _AS_IT_HAD_TO_BE or self._constraint is None:
            return
        if self._constraint.request.kind is ConstraintKind.TOOLS:
            await self._look(calls_as_text(output.tool_calls))
        else:
            await self._look(whole_answer())

    async def _look(self, text: str) -> None:
        # The only call of an output is all there is to look at in the end.
        if self._constraint is not None and text != self._seen:
            start_ns = self._clock_ns()
            try:
                await self._checker.verify(self._constraint, text)
            finally:
                self._note_stage(start_ns)
            self._seen = text

    def _note_stage(self, start_ns: int) -> None:
        if len(self.stages) < MAX_STAGES:
            self.stages.append(
                Stage(
                    kind=StageKind.CONSTRAINT_CHECK,
                    start_ns=start_ns,
                    end_ns=self._clock_ns(),
                    attributes={"checked": "output"},
                )
            )


def _broken_call(output_index: int) -> AntiphonError:
    return AntiphonError(
        ErrorReason.CONSTRAINT_VIOLATED,
        f"output {output_index} has a tool call that can't be read; the server's log tells more",
        metadata={"output_index": str(output_index)},
    )
