"""What the engine loop needs of whoever computes a step, and the arrays that describe a step.

`executor.Executor` is the real one; tests have one with a scripted model.
"""

from typing import Protocol, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.prompt_scores import ScoredTokens, TokenScores

_Scalar = TypeVar("_Scalar", bound=np.generic)


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
        """Launches the copies and then the computation that the set describes.

        Steps are carried out in the order of their launches, each as if those before it were done.

        Returns:
            The logits of the sampled positions, [S, V] float32, on the device. They are the
            caller's to overwrite.
        """

    def overlapped_ns(self, set_index: int) -> int:
        """Returns how long `execute` went on for the set when the device had begun with its step.

        That part of the launch holds nobody up.
        """

    def likeliest(self, set_index: int) -> torch.Tensor | None:
        """Returns the likeliest tokens of the logits that `execute` returned for the set last.

        [S] int32, on the device, of equal logits the first; None where nobody has looked for them.
        """

    def score(self, set_index: int, scored: ScoredTokens) -> TokenScores:
        """Launches the scoring of tokens of the step that was executed last.

        Comes, if at all, once and before its `store_tokens`.
        """

    def store_tokens(self, set_index: int, tokens: torch.Tensor) -> None:
        """Keeps what the step sampled, [S] int32 on the device, as the last tokens of its slots.

        Steps launched later read them there. Ends the launch of the step.
        """

    def wait(self, set_index: int) -> None:
        """Waits until the step of the set is carried out, its copies too.

        The set's `tokens` and `num_tokens` are there then, and nothing reads the set any more: the
        step may be committed, and another be planned into the set.
        """


def sampled_rows(step: StepBuffers) -> NDArray[np.int64]:
    """Returns the rows of a planned step that are sampled, in order."""
    num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
    return np.flatnonzero(np.diff(step["sample_indptr"][: num_rows + 1]))


def row_flags(step: StepBuffers) -> int:
    """Returns the flags that any row of a planned step has."""
    num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
    return int(np.bitwise_or.reduce(step["flags"][:num_rows]))


def make_buffers(config: EngineConfig, *, max_blocks: int, pinned: bool = False) -> StepBuffers:
    """Returns a set of arrays, large enough for any step.

    Args:
        config: The engine's settings.
        max_blocks: Of a whole context.
        pinned: Whether CUDA copies from them without waiting.
    """
    num_rows, num_tokens = config.max_rows, config.max_step_tokens

    def zeros(shape: int | tuple[int, int], dtype: type[_Scalar]) -> NDArray[_Scalar]:
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned).numpy()
        array: NDArray[_Scalar] = memory.view(dtype).reshape(shape)
        return array

    return StepBuffers(
        header=zeros(16, np.int32),
        handle=zeros(num_rows, np.uint64),
        epoch=zeros(num_rows, np.uint32),
        slot=zeros(num_rows, np.int32),
        adapter=zeros(num_rows, np.int32),
        flags=zeros(num_rows, np.uint32),
        q_len=zeros(num_rows, np.int32),
        cu_q=zeros(num_rows + 1, np.int32),
        ctx_len=zeros(num_rows, np.int32),
        kv_len=zeros(num_rows, np.int32),
        reused_tokens=zeros(num_rows, np.int32),
        output_position=zeros(num_rows, np.int32),
        uniform=zeros(num_rows, np.float64),
        sample_indptr=zeros(num_rows + 1, np.int32),
        sample_rows=zeros(num_rows, np.int32),
        input_ids=zeros(num_tokens, np.int32),
        gather_slot=zeros(num_tokens, np.int32),
        positions=zeros(num_tokens, np.int32),
        slot_mapping=zeros(num_tokens, np.int64),
        # A step may start a request in every row, each with a whole context of reused blocks.
        table_delta=zeros((num_rows * max_blocks, 3), np.int32),
        # The blocks of a context that come from the host, and one copied on write for each row.
        copy_ops=zeros((max_blocks + num_rows, 5), np.int32),
        slot_init=zeros(num_rows, np.int32),
        tokens=zeros((num_rows, 1), np.int32),
        num_tokens=zeros(num_rows, np.int32),
        result=zeros((num_rows, 4), np.int32),
    )
