"""What the engine loop needs of whoever computes a step, and the arrays that describe a step.

`executor.Executor` is the real one; tests have one with a scripted model.
"""

from typing import Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.api.config import EngineConfig


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


def make_buffers(config: EngineConfig, *, max_blocks: int) -> StepBuffers:
    """Returns a set of arrays, large enough for any step; `max_blocks`: of a whole context."""
    num_rows, num_tokens = config.max_rows, config.max_step_tokens
    return StepBuffers(
        header=np.zeros(16, np.int32),
        handle=np.zeros(num_rows, np.uint64),
        epoch=np.zeros(num_rows, np.uint32),
        slot=np.zeros(num_rows, np.int32),
        adapter=np.zeros(num_rows, np.int32),
        flags=np.zeros(num_rows, np.uint32),
        q_len=np.zeros(num_rows, np.int32),
        cu_q=np.zeros(num_rows + 1, np.int32),
        ctx_len=np.zeros(num_rows, np.int32),
        kv_len=np.zeros(num_rows, np.int32),
        reused_tokens=np.zeros(num_rows, np.int32),
        output_position=np.zeros(num_rows, np.int32),
        uniform=np.zeros(num_rows, np.float64),
        sample_indptr=np.zeros(num_rows + 1, np.int32),
        sample_rows=np.zeros(num_rows, np.int32),
        input_ids=np.zeros(num_tokens, np.int32),
        gather_slot=np.zeros(num_tokens, np.int32),
        positions=np.zeros(num_tokens, np.int32),
        slot_mapping=np.zeros(num_tokens, np.int64),
        # A step may start a request in every row, each with a whole context of reused blocks.
        table_delta=np.zeros((num_rows * max_blocks, 3), np.int32),
        copy_ops=np.zeros((num_rows, 5), np.int32),
        slot_init=np.zeros(num_rows, np.int32),
        tokens=np.zeros((num_rows, 1), np.int32),
        num_tokens=np.zeros(num_rows, np.int32),
        result=np.zeros((num_rows, 4), np.int32),
    )
