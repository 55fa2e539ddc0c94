"""What a captured step does before and behind the model, by kernels.

Shape suffixes: B rows, V vocabulary.
"""

from torch import Tensor

from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.cuda.kernels.logits import ArgmaxWorkspace, argmax
from antiphon_engine.cuda.kernels.step_tables import begin_step, keep_last_tokens
from antiphon_engine.cuda.step_edges import StepStart


class KernelEdges:
    """StepEdges with one launch for each end, and two for the likeliest tokens."""

    def __init__(self, tables: DeviceTables, *, max_rows: int, vocabulary_size: int) -> None:
        self._tables = tables
        self._workspace = ArgmaxWorkspace.allocate(
            num_rows=max_rows, vocabulary_size=vocabulary_size, device=tables.blocks_SM.device
        )

    def begin(self, start: StepStart) -> None:
        """See StepEdges."""
        begin_step(start, self._tables)

    def find_likeliest(self, logits_BV: Tensor, out_B: Tensor) -> None:
        """See StepEdges."""
        argmax(logits_BV, out_B, workspace=self._workspace)

    def keep(self, slots_B: Tensor, tokens_B: Tensor) -> None:
        """See StepEdges."""
        keep_last_tokens(slots_B, tokens_B, self._tables.last_tokens_S)
