"""What attends in a step, behind one Protocol.

A step has two parts: rows of one token at the front, which wait for memory, and rows of any number
of tokens behind, which wait for arithmetic. A backend serves both; one that is good at one of them
leaves the other to the engine's own kernels.

Shape suffixes: B rows of one token, R rows, T tokens, S slots, M blocks of the longest context,
Q features of queries, keys and values, A features of all query heads.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphon_engine.cuda.kernels.paged_attention import Heads, PagedRows
from antiphon_engine.cuda.kernels.prefill_attention import PrefillRows
from antiphon_engine.cuda.step_rows import HostRows

Cache = tuple[Tensor, Tensor]
"""Keys and values of a layer."""


class StepAttention(Protocol):
    """Launches attention over the cache, in which it puts the step's keys and values."""

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """Launches one layer's. `qkv_TQ` may be overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What a backend has to serve."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    """Of a block of the cache."""
    dtype: torch.dtype
    """Of queries and outputs."""
    kv_dtype: torch.dtype
    """Of the cache."""

    @classmethod
    def of(
        cls, heads: Heads, *, block_tokens: int, dtype: torch.dtype, kv_dtype: torch.dtype
    ) -> "AttentionShape":
        """Returns the shape of a layer's heads."""
        return cls(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            block_tokens=block_tokens,
            dtype=dtype,
            kv_dtype=kv_dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """Rows of any number of tokens."""

    rows: PrefillRows
    positions_T: Tensor
    """int32; where it is negative, nothing is written."""
    slot_mapping_T: Tensor
    """int64: where keys and values go, block * block_tokens + offset."""
    host: HostRows | None
    """What the host knows of `rows`; None where it knows nothing that will still hold: launches
    that are captured serve other rows later."""


class AttentionBackend(Protocol):
    """Makes the attention of a step's parts, once a step, for all of its layers.

    What is planned for a step is launched here, on the current stream. Memory that captured
    launches read is allocated as the backend is made.
    """

    @property
    def name(self) -> str:
        """As `engine.attention_backend` names it."""

    @property
    def version(self) -> str:
        """Of the library that computes, on which choices between backends depend."""

    def for_decodes(self, rows: PagedRows) -> StepAttention:
        """Returns the attention of rows of one token. May be captured."""

    def for_chunks(self, chunks: ChunkRows) -> StepAttention:
        """Returns the attention of rows of any number of tokens. May be captured without `host`."""
