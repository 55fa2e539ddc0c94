"""Paged attention with PyTorch's own scaled dot product: on any device, in any type.

Contexts are gathered from the cache into contiguous memory. Rows of one token are computed
together, grouped so that padding stays within bounds; longer rows one by one.

Shape suffixes as in `base`, and: G rows of a group, Q query heads to a key-value head, L context
tokens, S tokens of a row, B tokens of a block.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from antiphon_engine.attention.base import StepRows
from antiphon_engine.device import CPU, Device
from antiphon_engine.kv_tensors import KvTensors


@dataclass(frozen=True, slots=True)
class _SingleTokens:
    """Rows of one token each that are computed together."""

    tokens_G: Tensor
    tables_GM: Tensor
    mask_G11L: Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A row of several tokens."""

    start: int
    end: int
    table_M: Tensor
    context_end: int
    mask_SL: Tensor | None
    """None where nothing but the row's own tokens is seen: plain causal."""


class TorchSdpa:
    """Attention for the CPU; correct anywhere.

    `gather_limit_tokens` bounds how much context one gather of several rows copies.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: Device = CPU,
        *,
        gather_limit_tokens: int = 65_536,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._gather_limit_tokens = gather_limit_tokens

    def prepare(self, rows: StepRows, kv: KvTensors) -> "_Step":
        """Groups the rows and makes their masks."""
        (tables_SM,) = rows.block_tables
        block_tokens = kv.layout.block_tokens
        kv_tokens = rows.context_tokens + rows.num_tokens
        num_blocks = -(-kv_tokens // block_tokens)
        single = np.flatnonzero(rows.num_tokens == 1)
        groups = [
            self._single_tokens(rows, group, tables_SM, block_tokens)
            for group in group_by_length(
                single, num_blocks, self._gather_limit_tokens // block_tokens
            )
        ]
        chunks = [
            self._chunk(rows, int(row), tables_SM[rows.slots[row], : num_blocks[row]])
            for row in np.flatnonzero(rows.num_tokens > 1)
        ]
        return _Step(groups, chunks, rows, kv)

    def _single_tokens(
        self, rows: StepRows, group: NDArray[np.int64], tables_SM: Tensor, block_tokens: int
    ) -> _SingleTokens:
        kv_tokens = rows.context_tokens[group] + 1
        num_blocks = -(-int(kv_tokens.max()) // block_tokens)
        places_L = self._places(0, num_blocks * block_tokens)
        seen_GL = places_L < self._device.upload(kv_tokens)[:, None]
        return _SingleTokens(
            self._device.upload(rows.token_starts[group]).long(),
            tables_SM[:, :num_blocks].index_select(0, self._device.upload(rows.slots[group])),
            self._additive(seen_GL)[:, None, None, :],
        )

    def _chunk(self, rows: StepRows, row: int, table_M: Tensor) -> _Chunk:
        context, num_tokens = int(rows.context_tokens[row]), int(rows.num_tokens[row])
        start, end = int(rows.token_starts[row]), context + num_tokens
        mask_SL = None
        if context:
            seen_SL = self._places(0, end) <= self._places(context, end)[:, None]
            mask_SL = self._additive(seen_SL)
        return _Chunk(start, start + num_tokens, table_M, end, mask_SL)

    def _places(self, start: int, end: int) -> Tensor:
        return torch.arange(start, end, device=self._device.torch_device)

    def _additive(self, seen: Tensor) -> Tensor:
        nothing = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return nothing.masked_fill_(~seen, float("-inf"))


class _Step:
    """One step's groups and masks."""

    def __init__(
        self, groups: list[_SingleTokens], chunks: list[_Chunk], rows: StepRows, kv: KvTensors
    ) -> None:
        self._groups = groups
        self._chunks = chunks
        self._slot_mapping = rows.slot_mapping
        self._kv = kv

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Stores keys and values in the cache and returns [T, N, D]."""
        slots_T = self._slot_mapping[self._kv.layout.kv_group(layer)]
        self._kv.write(layer, k_TKD, v_TKD, slots_T)
        keys_PBKD, values_PBKD = self._kv.layer(layer)
        out_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
        for group in self._groups:
            k_GKLD = _gather(keys_PBKD, group.tables_GM)
            v_GKLD = _gather(values_PBKD, group.tables_GM)
            # The query heads of a key-value head are its queries: nothing is repeated.
            q_GKQD = _split_heads(q_TND[group.tokens_G], k_GKLD.shape[1])
            out_GKQD = functional.scaled_dot_product_attention(
                q_GKQD, k_GKLD, v_GKLD, attn_mask=group.mask_G11L
            )
            out_TND[group.tokens_G] = out_GKQD.flatten(1, 2)
        for chunk in self._chunks:
            span = slice(chunk.start, chunk.end)
            out_TND[span] = self._attend_chunk(chunk, q_TND[span], keys_PBKD, values_PBKD)
        return out_TND

    def _attend_chunk(
        self, chunk: _Chunk, q_SND: Tensor, keys_PBKD: Tensor, values_PBKD: Tensor
    ) -> Tensor:
        k_KLD = _gather(keys_PBKD, chunk.table_M[None])[0, :, : chunk.context_end]
        v_KLD = _gather(values_PBKD, chunk.table_M[None])[0, :, : chunk.context_end]
        # Key-value heads are the batch and stretch over their query heads: nothing is copied.
        q_KQSD = _split_heads(q_SND, k_KLD.shape[0]).permute(1, 2, 0, 3)
        num_queries = q_KQSD.shape[1]
        out_KQSD = functional.scaled_dot_product_attention(
            q_KQSD,
            k_KLD[:, None].expand(-1, num_queries, -1, -1),
            v_KLD[:, None].expand(-1, num_queries, -1, -1),
            attn_mask=chunk.mask_SL,
            is_causal=chunk.mask_SL is None,
        )
        return out_KQSD.flatten(0, 1).transpose(0, 1)


def group_by_length(
    rows: NDArray[np.int64], num_blocks: NDArray[np.int32], limit_blocks: int
) -> list[NDArray[np.int64]]:
    """Divides rows into groups that waste at most half of what they gather on padding.

    A group gathers at most `limit_blocks`, or one row. Rows of less than a sixteenth of the limit
    in all stay together whatever their lengths.

    Args:
        rows: Row indices.
        num_blocks: The length of each row of the step, indexed by row.
        limit_blocks: At least 1.
    """
    if not rows.size:
        return []
    ordered = rows[np.argsort(num_blocks[rows], kind="stable")]
    lengths = num_blocks[ordered].astype(np.int64)
    if ordered.size * lengths[-1] <= limit_blocks // 16:
        return [ordered]
    classes = np.ceil(np.log2(lengths)).astype(np.int64)
    groups = []
    for members in np.split(ordered, np.flatnonzero(np.diff(classes)) + 1):
        size = max(1, limit_blocks // int(num_blocks[members[-1]]))
        groups += [members[first : first + size] for first in range(0, members.size, size)]
    return groups


def _split_heads(q_TND: Tensor, num_kv_heads: int) -> Tensor:
    """Returns the query heads by key-value head: [T, K, Q, D]."""
    num_tokens, num_heads, head_dim = q_TND.shape
    return q_TND.reshape(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)


def _gather(pool_PBKD: Tensor, tables_GM: Tensor) -> Tensor:
    """Returns the contexts as [G, K, L, D], a view in which a token's heads lie together."""
    num_rows, num_blocks = tables_GM.shape
    blocks = pool_PBKD.index_select(0, tables_GM.reshape(-1))
    return blocks.view(num_rows, num_blocks * blocks.shape[1], *blocks.shape[2:]).transpose(1, 2)
