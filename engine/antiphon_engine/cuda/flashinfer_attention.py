"""Attention of chunks by FlashInfer's kernels, in steps that are launched part by part.

FlashInfer divides a step among the device's multiprocessors on the host, from lengths that the host
knows. Captured steps serve rows whose lengths are read on the device, so the own kernels attend in
them, and to rows of one token always.

Shape suffixes: as in `attention_backend`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from antiphon_engine.api.attention_build import HEAD_DIMS
from antiphon_engine.cuda.attention_backend import (
    AttentionBackend,
    AttentionShape,
    Cache,
    ChunkRows,
    StepAttention,
)
from antiphon_engine.cuda.flashinfer_library import (
    FlashInferError,
    PrefillLibrary,
    PrefillWrapper,
)
from antiphon_engine.cuda.kernels.paged_attention import Heads, PagedRows
from antiphon_engine.cuda.kernels.prefill_attention import PrefillRows, store_heads
from antiphon_engine.cuda.step_rows import HostRows
from antiphon_engine.device import Device, Fence, PassedFence

FLASHINFER: Final = "flashinfer"
_NUM_PLANS: Final = 4
"""Plans whose copies to the device may be under way: more than steps that are."""


@dataclass(slots=True)
class _Plan:
    """A wrapper, whose pinned memory the next plan overwrites."""

    wrapper: PrefillWrapper
    copied: Fence = field(default_factory=PassedFence)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAttention:
    """Rows of any number of tokens, as a wrapper has planned them."""

    chunks: ChunkRows
    wrapper: PrefillWrapper

    def attend(self, heads: Heads, cache: Cache, qkv_TQ: Tensor, out_TA: Tensor) -> None:
        """See StepAttention."""
        store_heads(
            qkv_TQ,
            cache,
            heads=heads,
            positions_T=self.chunks.positions_T,
            slot_mapping_T=self.chunks.slot_mapping_T,
        )
        num_tokens, num_heads, head_dim = len(out_TA), heads.num_heads, heads.head_dim
        self.wrapper.run(
            qkv_TQ[:, : num_heads * head_dim].view(num_tokens, num_heads, head_dim),
            cache,
            out=out_TA.view(num_tokens, num_heads, head_dim),
            enable_pdl=False,
        )


class FlashInferBackend:
    """An AttentionBackend that leaves to another what it doesn't serve.

    Args:
        library: With its kernels loaded.
        own: Serves rows of one token, and captured steps.
        shape: What is served.
        device: Where.
    """

    def __init__(
        self,
        library: PrefillLibrary,
        own: AttentionBackend,
        shape: AttentionShape,
        device: Device,
    ) -> None:
        self._own = own
        self._shape = shape
        self._device = device
        torch_device = device.torch_device
        self._plans = [_Plan(library.make_wrapper(torch_device)) for _ in range(_NUM_PLANS)]
        self._next_plan = 0
        self._version = library.version

    @classmethod
    def open(
        cls,
        own: AttentionBackend,
        shape: AttentionShape,
        device: Device,
        find: Callable[[], PrefillLibrary],
    ) -> "FlashInferBackend":
        """Returns a backend by what `find` finds, if its kernels are built.

        Raises:
            FlashInferError: it isn't there, doesn't serve the shape, or isn't built.
        """
        library = find()
        refusal = _refusal(shape)
        if refusal is not None:
            raise FlashInferError(refusal)
        if not library.use_built(shape.head_dim):
            raise FlashInferError(
                f"its kernels for heads of {shape.head_dim} features are not built; "
                f"`antiphon build-attention --head-dim {shape.head_dim}` does that"
            )
        return cls(library, own, shape, device)

    @property
    def name(self) -> str:
        """See AttentionBackend."""
        return FLASHINFER

    @property
    def version(self) -> str:
        """See AttentionBackend."""
        return self._version

    def for_decodes(self, rows: PagedRows) -> StepAttention:
        """See AttentionBackend."""
        return self._own.for_decodes(rows)

    def for_chunks(self, chunks: ChunkRows) -> StepAttention:
        """See AttentionBackend."""
        if chunks.host is None:
            return self._own.for_chunks(chunks)
        return PlannedAttention(chunks=chunks, wrapper=self._plan(chunks.rows, chunks.host))

    def _plan(self, rows: PrefillRows, host: HostRows) -> PrefillWrapper:
        """Plans a step, and launches the copies of its plan."""
        plan = self._plans[self._next_plan]
        self._next_plan = (self._next_plan + 1) % len(self._plans)
        plan.copied.synchronize()
        shape, size = self._shape, self._shape.block_tokens
        num_tokens_R = np.diff(host.row_starts_R1)
        lengths_R = host.contexts_R + num_tokens_R
        num_blocks_R = -(-lengths_R // size)
        block_starts_R1 = np.append(0, num_blocks_R.cumsum()).astype(np.int32)
        plan.wrapper.plan(
            # Copies: what the host has of a step is planned into again.
            torch.from_numpy(host.row_starts_R1.astype(np.int32)),
            torch.from_numpy(block_starts_R1),
            self._blocks(rows.block_tables_SM, host, num_blocks_R, block_starts_R1),
            torch.from_numpy((lengths_R - (num_blocks_R - 1) * size).astype(np.int32)),
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            size,
            causal=True,
            q_data_type=shape.dtype,
            kv_data_type=shape.kv_dtype,
            max_token_per_sequence=int(num_tokens_R.max()),
        )
        plan.copied = self._device.fence()
        return plan.wrapper

    def _blocks(
        self,
        tables_SM: Tensor,
        host: HostRows,
        num_blocks_R: np.ndarray,
        block_starts_R1: np.ndarray,
    ) -> Tensor:
        """Returns the rows' block ids one after the other, which the device alone knows."""
        firsts_R = host.slots_R.astype(np.int64) * tables_SM.shape[1] - block_starts_R1[:-1]
        places = np.repeat(firsts_R, num_blocks_R) + np.arange(block_starts_R1[-1])
        return tables_SM.view(-1)[self._device.upload(places)]


def _refusal(shape: AttentionShape) -> str | None:
    """Returns why a shape isn't served, in any groups of heads and blocks; None: it is."""
    if shape.head_dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        return f"heads of {shape.head_dim} features: {sizes} are supported"
    for what, dtype in (("type", shape.dtype), ("KV cache of type", shape.kv_dtype)):
        if dtype is not torch.bfloat16:
            return f"{what} {str(dtype).removeprefix('torch.')}: bfloat16 is supported"
    return None
