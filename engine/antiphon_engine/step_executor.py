"""What the engine loop needs of whoever computes a step, and the arrays that describe a step.

`executor.Executor` is the real one; tests have one with a scripted model.
"""

from typing import Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray


class StepBuffers(TypedDict):
    """One set of the arrays that `_native.EngineCore.register_buffers` takes; meaning as there."""

    header: NDArray[np.int32]
    handle: NDArray[np.uint64]
    epoch: NDArray[np.uint32]
    slot: NDArray[np.int32]
    adapter: NDArray[np.int32]
    flags: NDArray[np.uint32]
    q_len: NDArray[np.int32]
    cu_q: NDArray[np.int32]
    ctx_len: NDArray[np.int32]
    kv_len: NDArray[np.int32]
    reused_tokens: NDArray[np.int32]
    output_position: NDArray[np.int32]
    uniform: NDArray[np.float64]
    sample_indptr: NDArray[np.int32]
    sample_rows: NDArray[np.int32]
    input_ids: NDArray[np.int32]
    gather_slot: NDArray[np.int32]
    positions: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]
    table_delta: NDArray[np.int32]
    copy_ops: NDArray[np.int32]
    slot_init: NDArray[np.int32]
    tokens: NDArray[np.int32]
    num_tokens: NDArray[np.int32]
    result: NDArray[np.int32]


class StepExecutor(Protocol):
    """Computes planned steps. Used by the engine's one thread."""

    def buffers(self, set_index: int) -> StepBuffers:
        """Returns the arrays of a set; always the same ones, which the core fills."""

    def execute(self, set_index: int) -> torch.Tensor:
        """Computes the step that the set describes.

        Returns:
            The logits of the sampled positions, [S, V] float32. They are the caller's to overwrite.
        """

    def store_tokens(self, set_index: int, tokens: torch.Tensor) -> None:
        """Keeps what was sampled, [S] int32: the slots' last tokens and the set's, for commit."""
