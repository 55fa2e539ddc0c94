"""What a model computes in one step.

Shape suffixes: T tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from antiphon_engine.attention.base import StepAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step's input, complete on the device."""

    input_ids_T: Tensor
    """int64; every id is known."""
    positions_T: Tensor
    """int64; 0 at a prompt's first token."""
    attention: StepAttention
