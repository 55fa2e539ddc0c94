"""What a step on CUDA computes, complete on the device. Imports no kernels.

Shape suffixes: B rows of a decode step, R rows of any step, T its tokens, S slots, M blocks of the
longest context, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """Rows of one token each. A captured step reads all that changes from these tensors."""

    input_ids_B: Tensor
    """int32; every id is known, those of padding rows too."""
    positions_B: Tensor
    """int32: tokens in the cache before the step; -1 for a padding row, which writes nothing."""
    slots_B: Tensor
    """int32: the row of `block_tables_SM` that each has."""
    block_tables_SM: Tensor
    """int32, contiguous: block ids, in order; behind a row's end anything valid."""
    logits_BV: Tensor
    """float32, contiguous: what is computed; anything in padding rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRows:
    """What the host knows of a step's rows, for what is planned there. Read before it returns."""

    row_starts_R1: NDArray[np.int32]
    """As MixedRows has it, without padding."""
    contexts_R: NDArray[np.int32]
    slots_R: NDArray[np.int32]

    def behind(self, num_rows: int) -> "HostRows":
        """Returns what comes behind so many rows of one token each."""
        return HostRows(
            row_starts_R1=self.row_starts_R1[num_rows:] - np.int32(num_rows),
            contexts_R=self.contexts_R[num_rows:],
            slots_R=self.slots_R[num_rows:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRows:
    """Rows of any number of tokens; those that decode come first.

    A step may be padded: with empty rows behind the last, which start at the last token's end, and
    with tokens that no row has, at position 0, whose keys and values go into block 0.
    """

    input_ids_T: Tensor
    """int32; every id is known."""
    positions_T: Tensor
    """int32; 0 at a prompt's first token."""
    slot_mapping_T: Tensor
    """int64: where keys and values go, block * block_tokens + offset."""
    row_starts_R1: Tensor
    """int32: where each row's tokens begin in [T], and behind the last row where they end."""
    contexts_R: Tensor
    """int32: tokens in the cache before the step."""
    slots_R: Tensor
    """int32: the row of `block_tables_SM` that each has."""
    block_tables_SM: Tensor
    """int32, contiguous: block ids, in order; behind a row's end anything valid."""
    num_decode_rows: int
    """Rows at the front that have one token each; token r is row r's."""
    host: HostRows | None = None
    """What the host knows of the rows; None where the launches are captured, since they serve other
    rows later."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, padding too."""
        return self.input_ids_T.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows of the step, padding too."""
        return self.slots_R.shape[0]
