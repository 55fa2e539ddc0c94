"""What a captured step does before and behind the model: by kernels on CUDA, else by operators.

Shape suffixes: B rows, T tokens, D changes of the block table, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.likeliest import likeliest_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """A step's arrays that are taken in before the model."""

    deltas_D3: Tensor
    """int32, settled."""
    num_deltas_1: Tensor
    """int32: how many of them count."""
    input_ids_T: Tensor
    gather_slots_T: Tensor
    known_ids_T: Tensor
    """int32: where ids go, those that the plan doesn't know too."""


class StepEdges(Protocol):
    """Launches what surrounds the model. May be captured."""

    def begin(self, start: StepStart) -> None:
        """Changes the block table and finds the ids."""

    def find_likeliest(self, logits_BV: Tensor, out_B: Tensor) -> None:
        """Finds the first of each row's largest logits; int32."""

    def keep(self, slots_B: Tensor, tokens_B: Tensor) -> None:
        """Keeps the last tokens of some slots; int32."""


def make_edges(tables: DeviceTables, *, max_rows: int, vocabulary_size: int) -> StepEdges:
    """Returns the edges of steps over these tables, where those lie."""
    if tables.blocks_SM.is_cuda:
        # Only here: it imports Triton.
        from antiphon_engine.cuda.kernel_edges import KernelEdges

        return KernelEdges(tables, max_rows=max_rows, vocabulary_size=vocabulary_size)
    return OperatorEdges(tables)


class OperatorEdges:
    """StepEdges by PyTorch's operators."""

    def __init__(self, tables: DeviceTables) -> None:
        self._tables = tables

    def begin(self, start: StepStart) -> None:
        """See StepEdges."""
        self._tables.change_blocks(start.deltas_D3[: int(start.num_deltas_1)])
        start.known_ids_T.copy_(self._tables.known_ids(start.input_ids_T, start.gather_slots_T))

    def find_likeliest(self, logits_BV: Tensor, out_B: Tensor) -> None:
        """See StepEdges."""
        out_B.copy_(likeliest_ids(logits_BV).to(torch.int32))

    def keep(self, slots_B: Tensor, tokens_B: Tensor) -> None:
        """See StepEdges."""
        self._tables.set_last_tokens(slots_B, tokens_B)
