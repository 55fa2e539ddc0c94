"""Attention by the engine's own kernels: it serves every step, captured or not.

Shape suffixes: as in `attention_backend`.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from antiphon_engine.cuda.attention_backend import Cache, ChunkRows, StepAttention
from antiphon_engine.cuda.choices import paged_config, prefill_config, spread_config, spread_rows
from antiphon_engine.cuda.kernels.dense_prefill import (
    DenseConfig,
    attend_dense,
    can_attend_dense,
)
from antiphon_engine.cuda.kernels.paged_attention import (
    Heads,
    PagedRows,
    PagedWorkspace,
    attend_paged,
)
from antiphon_engine.cuda.kernels.prefill_attention import (
    PrefillConfig,
    attend_rows,
    store_heads,
)
from antiphon_engine.cuda.kernels.spread_attention import (
    SpreadConfig,
    SpreadWorkspace,
    attend_spread,
    plan_rows,
)

TRITON: Final = "triton"


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

    chunks: ChunkRows
    config: PrefillConfig
    dense_config: DenseConfig | None
    """How rows are divided where their own tokens are read in one piece; None: they never are."""

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """See StepAttention."""
        store_heads(
            qkv_TQ,
            cache,
            heads=heads,
            positions_T=self.chunks.positions_T,
            slot_mapping_T=self.chunks.slot_mapping_T,
        )
        rows, dense = self.chunks.rows, self.dense_config
        if dense is not None and can_attend_dense(heads, qkv_TQ, cache, dense):
            attend_dense(qkv_TQ, out_TA, cache, heads=heads, rows=rows, config=dense)
        else:
            attend_rows(qkv_TQ, out_TA, cache, heads=heads, rows=rows, config=self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """In which way the own kernels attend."""

    is_fixed: bool
    """Whether a token's numbers don't depend on what is beside it, where all rows are chunks."""
    overlap: bool
    """Whether kernels start before those in front of them have ended."""
    is_narrow: bool = False
    """Whether keys and values are 8-bit floats."""
    tile_tokens: int = 0
    """Of tiles that decodes have brought, as in `SpreadConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonBackend:
    """An AttentionBackend of heads of 16 to 256 features, in any groups and blocks."""

    heads: Heads
    """Of any layer."""
    options: TritonOptions
    workspace: PagedWorkspace
    spread_config: SpreadConfig
    spread_workspace: SpreadWorkspace

    @classmethod
    def allocate(
        cls, heads: Heads, options: TritonOptions, *, max_rows: int, device: torch.device
    ) -> "TritonBackend":
        """Returns a backend for steps of up to so many rows of one token."""
        num_row_splits = max(
            num_rows * paged_config(num_rows).max_splits
            for num_rows in range(1, spread_rows(options.tile_tokens))
        )
        spread = spread_config(
            device, heads=heads, is_narrow=options.is_narrow, tile_tokens=options.tile_tokens
        )
        return cls(
            heads=heads,
            options=options,
            workspace=PagedWorkspace.allocate(
                heads, num_row_splits=num_row_splits, num_rows=max_rows, device=device
            ),
            spread_config=spread,
            spread_workspace=SpreadWorkspace.allocate(
                heads, spread, num_rows=max_rows, device=device
            ),
        )

    @property
    def name(self) -> str:
        """See AttentionBackend."""
        return TRITON

    @property
    def version(self) -> str:
        """See AttentionBackend."""
        version: str = triton.__version__
        return version

    def for_decodes(self, rows: PagedRows) -> StepAttention:
        """See AttentionBackend."""
        overlap = self.options.overlap
        if len(rows.positions_B) < spread_rows(self.options.tile_tokens):
            return PagedAttention(rows=rows, workspace=self.workspace, overlap=overlap)
        plan_rows(
            rows,
            heads=self.heads,
            config=self.spread_config,
            workspace=self.spread_workspace,
        )
        return SpreadAttention(
            rows=rows,
            config=self.spread_config,
            workspace=self.spread_workspace,
            overlap=overlap,
        )

    def for_chunks(self, chunks: ChunkRows) -> StepAttention:
        """See AttentionBackend."""
        options = self.options
        return RowsAttention(
            chunks=chunks,
            config=prefill_config(is_narrow=options.is_narrow, is_fixed=options.is_fixed),
            # Where a prompt was cut would show in blocks that are counted from there.
            dense_config=None if options.is_fixed else DenseConfig(),
        )
