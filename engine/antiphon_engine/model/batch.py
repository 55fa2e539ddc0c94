"""What a model computes in one step.

Shape suffixes: T tokens, S sampled tokens.
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
    sample_rows_S: Tensor
    """int64; the tokens whose successor is asked for."""
    attention: StepAttention
