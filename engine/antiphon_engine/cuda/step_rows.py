"""What a step on CUDA computes, complete on the device. Imports no kernels.

Shape suffixes: B rows of a decode step, R rows of any step, T its tokens, S slots, M blocks of the
longest context, V vocabulary.
"""

from dataclasses import dataclass

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

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, padding too."""
        return self.input_ids_T.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows of the step, padding too."""
        return self.slots_R.shape[0]
