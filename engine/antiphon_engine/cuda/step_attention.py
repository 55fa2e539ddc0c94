"""The attention of one step, whatever its rows are, as the layers see it.

Shape suffixes: as in `attention_backend`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_engine.cuda.attention_backend import (
    AttentionBackend,
    Cache,
    ChunkRows,
    StepAttention,
)
from antiphon_engine.cuda.kernels.paged_attention import Heads, PagedRows
from antiphon_engine.cuda.kernels.prefill_attention import PrefillRows
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAttention:
    """Rows of one token at the front, any behind.

    The former wait for memory, the latter for arithmetic or, where they are few, for each other: so
    they are computed beside each other.
    """

    num_decode_rows: int
    decoding: StepAttention
    others: StepAttention
    beside: torch.cuda.Stream | None
    """Where the others are launched; None: on the current stream."""

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """See StepAttention."""
        split = self.num_decode_rows
        if self.beside is None:
            self.decoding.attend(heads, cache, qkv_TQ[:split], out_TA[:split])
            self.others.attend(heads, cache, qkv_TQ[split:], out_TA[split:])
            return
        current = torch.cuda.current_stream()
        self.beside.wait_stream(current)
        with torch.cuda.stream(self.beside):
            self.others.attend(heads, cache, qkv_TQ[split:], out_TA[split:])
        self.decoding.attend(heads, cache, qkv_TQ[:split], out_TA[:split])
        current.wait_stream(self.beside)


@dataclass(slots=True, kw_only=True)
class AttentionMaker:
    """Makes the attention of steps: takes them apart for a backend.

    `is_fixed`: all rows are chunks, so that a token's numbers don't depend on what is beside it.
    """

    backends: Sequence[AttentionBackend]
    """Those that there are to choose from."""
    backend: AttentionBackend
    """The one that attends. May be changed between steps, before any is captured."""
    row_numbers: Tensor
    """int32, from 0; more than a step has rows."""
    is_fixed: bool
    beside: torch.cuda.Stream | None
    """For what may be computed beside the rest; None: nothing is."""

    @classmethod
    def allocate(
        cls,
        backends: Sequence[AttentionBackend],
        *,
        max_rows: int,
        is_fixed: bool,
        device: torch.device,
    ) -> "AttentionMaker":
        """Returns what makes the attention of steps of up to so many rows, by the first backend."""
        return cls(
            backends=backends,
            backend=backends[0],
            row_numbers=torch.arange(max_rows + 1, dtype=torch.int32, device=device),
            is_fixed=is_fixed,
            beside=torch.cuda.Stream(device) if device.type == "cuda" else None,
        )

    def for_decode(self, rows: DecodeRows, block_tokens: int) -> StepAttention:
        """Returns the attention of rows of one token."""
        if not self.is_fixed:
            return self._decodes(rows.positions_B, rows.slots_B, rows.block_tables_SM)
        num_rows = rows.positions_B.shape[0]
        places = rows.positions_B.clamp(min=0).long()
        blocks = rows.block_tables_SM[rows.slots_B.long(), places // block_tokens]
        return self.backend.for_chunks(
            ChunkRows(
                rows=PrefillRows(
                    row_starts_R1=self.row_numbers[: num_rows + 1],
                    contexts_R=rows.positions_B,
                    slots_R=rows.slots_B,
                    block_tables_SM=rows.block_tables_SM,
                    num_tokens=num_rows,
                ),
                positions_T=rows.positions_B,
                slot_mapping_T=blocks.long() * block_tokens + places % block_tokens,
                host=None,
            )
        )

    def for_rows(self, rows: MixedRows) -> StepAttention:
        """Returns the attention of rows of any number of tokens."""
        split = 0 if self.is_fixed else rows.num_decode_rows
        if split and split == rows.num_tokens:
            return self._decodes(rows.positions_T, rows.slots_R[:split], rows.block_tables_SM)
        starts = rows.row_starts_R1[split:]
        others = self.backend.for_chunks(
            ChunkRows(
                rows=PrefillRows(
                    row_starts_R1=starts - split if split else starts,
                    contexts_R=rows.contexts_R[split:],
                    slots_R=rows.slots_R[split:],
                    block_tables_SM=rows.block_tables_SM,
                    num_tokens=rows.num_tokens - split,
                ),
                positions_T=rows.positions_T[split:],
                slot_mapping_T=rows.slot_mapping_T[split:],
                host=None if rows.host is None else rows.host.behind(split),
            )
        )
        if not split:
            return others
        decoding = self._decodes(
            rows.positions_T[:split], rows.slots_R[:split], rows.block_tables_SM
        )
        return MixedAttention(
            num_decode_rows=split, decoding=decoding, others=others, beside=self.beside
        )

    def _decodes(self, positions_B: Tensor, slots_B: Tensor, tables_SM: Tensor) -> StepAttention:
        return self.backend.for_decodes(
            PagedRows(positions_B=positions_B, slots_B=slots_B, block_tables_SM=tables_SM)
        )
