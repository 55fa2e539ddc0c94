"""The attention of one step, whatever its rows are, as the layers see it.

Shape suffixes: T tokens, Q features of queries, keys and values, A features of all query heads.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphon_engine.cuda.choices import SPREAD_ROWS, paged_config, spread_config
from antiphon_engine.cuda.kernels.paged_attention import (
    Heads,
    PagedRows,
    PagedWorkspace,
    attend_paged,
)
from antiphon_engine.cuda.kernels.prefill_attention import (
    PrefillConfig,
    PrefillRows,
    attend_rows,
    store_heads,
)
from antiphon_engine.cuda.kernels.spread_attention import (
    SpreadConfig,
    SpreadWorkspace,
    attend_spread,
    plan_rows,
)
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows

Cache = tuple[Tensor, Tensor]
"""Keys and values of a layer."""


class StepAttention(Protocol):
    """Launches attention over the cache, in which it puts the step's keys and values."""

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """Launches one layer's. `qkv_TQ` may be overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedAttention:
    """Rows of one token, each shared by several programs."""

    rows: PagedRows
    workspace: PagedWorkspace
    overlap: bool

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """See StepAttention."""
        attend_paged(
            qkv_TQ,
            out_TA,
            cache,
            heads=heads,
            rows=self.rows,
            config=paged_config(qkv_TQ.shape[0]),
            workspace=self.workspace,
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadAttention:
    """Many rows of one token, all of which programs share as was planned."""

    rows: PagedRows
    config: SpreadConfig
    workspace: SpreadWorkspace
    overlap: bool

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """See StepAttention."""
        attend_spread(
            qkv_TQ,
            out_TA,
            cache,
            heads=heads,
            rows=self.rows,
            config=self.config,
            workspace=self.workspace,
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAttention:
    """Rows of any number of tokens."""

    rows: PrefillRows
    positions_T: Tensor
    slot_mapping_T: Tensor
    config: PrefillConfig

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """See StepAttention."""
        store_heads(
            qkv_TQ,
            cache,
            heads=heads,
            positions_T=self.positions_T,
            slot_mapping_T=self.slot_mapping_T,
        )
        attend_rows(qkv_TQ, out_TA, cache, heads=heads, rows=self.rows, config=self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAttention:
    """Rows of one token at the front, any behind.

    The former wait for memory, the latter for arithmetic or, where they are few, for each other: so
    they are computed beside each other.
    """

    num_decode_rows: int
    decoding: PagedAttention | SpreadAttention
    others: RowsAttention
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMaker:
    """Makes the attention of steps, and launches what is planned for all of a step's layers.

    `is_fixed`: a token's doesn't depend on what is beside it.
    """

    heads: Heads
    """Of any layer."""
    workspace: PagedWorkspace
    spread_config: SpreadConfig
    spread_workspace: SpreadWorkspace
    row_numbers: Tensor
    """int32, from 0; more than a step has rows."""
    is_fixed: bool
    overlap: bool
    beside: torch.cuda.Stream | None
    """For what may be computed beside the rest; None: nothing is."""

    def for_decode(self, rows: DecodeRows, block_tokens: int) -> StepAttention:
        """Returns the attention of rows of one token."""
        if not self.is_fixed:
            return self._paged(rows.positions_B, rows.slots_B, rows.block_tables_SM)
        num_rows = rows.positions_B.shape[0]
        places = rows.positions_B.clamp(min=0).long()
        blocks = rows.block_tables_SM[rows.slots_B.long(), places // block_tokens]
        return RowsAttention(
            rows=PrefillRows(
                row_starts_R1=self.row_numbers[: num_rows + 1],
                contexts_R=rows.positions_B,
                slots_R=rows.slots_B,
                block_tables_SM=rows.block_tables_SM,
                num_tokens=num_rows,
            ),
            positions_T=rows.positions_B,
            slot_mapping_T=blocks.long() * block_tokens + places % block_tokens,
            config=self._rows_config(),
        )

    def for_rows(self, rows: MixedRows) -> StepAttention:
        """Returns the attention of rows of any number of tokens."""
        split = 0 if self.is_fixed else rows.num_decode_rows
        if split and split == rows.num_tokens:
            return self._paged(rows.positions_T, rows.slots_R[:split], rows.block_tables_SM)
        starts = rows.row_starts_R1[split:]
        others = RowsAttention(
            rows=PrefillRows(
                row_starts_R1=starts - split if split else starts,
                contexts_R=rows.contexts_R[split:],
                slots_R=rows.slots_R[split:],
                block_tables_SM=rows.block_tables_SM,
                num_tokens=rows.num_tokens - split,
            ),
            positions_T=rows.positions_T[split:],
            slot_mapping_T=rows.slot_mapping_T[split:],
            config=self._rows_config(),
        )
        if not split:
            return others
        decoding = self._paged(rows.positions_T[:split], rows.slots_R[:split], rows.block_tables_SM)
        return MixedAttention(
            num_decode_rows=split, decoding=decoding, others=others, beside=self.beside
        )

    def _paged(
        self, positions_B: Tensor, slots_B: Tensor, tables_SM: Tensor
    ) -> PagedAttention | SpreadAttention:
        rows = PagedRows(positions_B=positions_B, slots_B=slots_B, block_tables_SM=tables_SM)
        if len(positions_B) < SPREAD_ROWS:
            return PagedAttention(rows=rows, workspace=self.workspace, overlap=self.overlap)
        plan_rows(
            positions_B,
            heads=self.heads,
            config=self.spread_config,
            workspace=self.spread_workspace,
        )
        return SpreadAttention(
            rows=rows,
            config=self.spread_config,
            workspace=self.spread_workspace,
            overlap=self.overlap,
        )

    def _rows_config(self) -> PrefillConfig:
        return PrefillConfig(one_loop=self.is_fixed)


def make_attention(
    heads: Heads, *, max_rows: int, is_fixed: bool, overlap: bool, device: torch.device
) -> AttentionMaker:
    """Returns what makes the attention of steps of up to so many rows."""
    num_row_splits = max(
        num_rows * paged_config(num_rows).max_splits for num_rows in range(1, SPREAD_ROWS)
    )
    spread = spread_config(device)
    return AttentionMaker(
        heads=heads,
        workspace=PagedWorkspace.allocate(
            heads, num_row_splits=num_row_splits, num_rows=max_rows, device=device
        ),
        spread_config=spread,
        spread_workspace=SpreadWorkspace.allocate(heads, spread, num_rows=max_rows, device=device),
        row_numbers=torch.arange(max_rows + 1, dtype=torch.int32, device=device),
        is_fixed=is_fixed,
        overlap=overlap,
        beside=torch.cuda.Stream(device) if device.type == "cuda" else None,
    )
