"""How long a backend takes to attend to new prompts.

Shape suffixes: as in `attention_backend`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from antiphon_engine.cuda.attention_backend import AttentionBackend, ChunkRows
from antiphon_engine.cuda.kernels.paged_attention import Heads
from antiphon_engine.cuda.kernels.prefill_attention import PrefillRows
from antiphon_engine.cuda.step_rows import HostRows
from antiphon_engine.kv_tensors import KvTensors

_ROW_TOKENS: Final = 2048
"""Of a row of what is measured: a prompt as long as many are."""
_NUM_LAUNCHES: Final = 4
_NUM_TIMES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimer:
    """Times one layer's attention of new prompts, over whatever the cache holds; writes to it."""

    heads: Heads
    kv: KvTensors
    qkv_TQ: Tensor
    """As many tokens as the largest step has; overwritten."""
    out_TA: Tensor
    context_tokens: int
    """Of the longest context."""

    def time_ms(self, backend: AttentionBackend) -> float:
        """Returns the median time of a layer; waits for the device."""
        attention = backend.for_chunks(self.chunks())
        cache = self.kv.layer(0)
        self.qkv_TQ.normal_()

        def launch() -> None:
            for _ in range(_NUM_LAUNCHES):
                attention.attend(self.heads, cache, self.qkv_TQ, self.out_TA)

        launch()
        return sorted(_spent_ms(launch) for _ in range(_NUM_TIMES))[_NUM_TIMES // 2] / _NUM_LAUNCHES

    def chunks(self) -> ChunkRows:
        """Returns rows of new prompts, which the whole step's tokens are divided into."""
        layout, device = self.kv.layout, self.qkv_TQ.device
        num_tokens = len(self.qkv_TQ)
        row_tokens = min(_ROW_TOKENS, self.context_tokens, num_tokens)
        starts_R1 = np.append(np.arange(0, num_tokens, row_tokens), num_tokens).astype(np.int32)
        num_rows = len(starts_R1) - 1
        host = HostRows(
            row_starts_R1=starts_R1,
            contexts_R=np.zeros(num_rows, np.int32),
            slots_R=np.arange(num_rows, dtype=np.int32),
        )
        width = -(-row_tokens // layout.block_tokens)
        tables_SM = (np.arange(num_rows * width) % layout.num_blocks).reshape(num_rows, width)
        rows_T = np.repeat(host.slots_R, np.diff(starts_R1))
        positions_T = np.arange(num_tokens) - starts_R1[rows_T]
        blocks_T = tables_SM[rows_T, positions_T // layout.block_tokens]
        slots_T = blocks_T * layout.block_tokens + positions_T % layout.block_tokens

        def ints(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array.astype(np.int32)).to(device)

        return ChunkRows(
            rows=PrefillRows(
                row_starts_R1=ints(starts_R1),
                contexts_R=ints(host.contexts_R),
                slots_R=ints(host.slots_R),
                block_tables_SM=ints(tables_SM),
                num_tokens=num_tokens,
            ),
            positions_T=ints(positions_T),
            slot_mapping_T=torch.from_numpy(slots_T.astype(np.int64)).to(device),
            host=host,
        )


def _spent_ms(launch: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3
