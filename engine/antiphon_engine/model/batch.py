"""What a model computes in one step.

Shape suffixes: T tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from antiphon_engine.attention.base import StepRows
from antiphon_engine.kv_tensors import KvTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step's input, complete on the device. How a model attends to its context is its own."""

    input_ids_T: Tensor
    """int32; every id is known."""
    positions_T: Tensor
    """int32; 0 at a prompt's first token."""
    rows: StepRows
    kv: KvTensors
    """Where the context lies and the step's keys and values go; always the same cache."""
