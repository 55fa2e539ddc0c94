"""The arrays of a step's draws, packed into one piece whose layout depends on the bucket alone.

Shape suffixes: D rows that are drawn, W words of 32 token bits.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT: Final = 4
"""In integers: arrays begin where wide loads may."""
_NUM_FIELDS: Final = 4
_WORDS_OF_A_UNIFORM: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawArrays:
    """Which rows are drawn, on the device."""

    rows_D: Tensor
    """int32: the row of the logits and of the tokens, each once; -1: padding, which is nothing."""
    slots_D: Tensor
    """int32: whose parameters hold."""
    positions_D: Tensor
    """int32: how many tokens the output has had."""
    masks_D: Tensor
    """int32: the row of `words_DW` that says what may come; -1: all may."""
    uniforms_D: Tensor
    """float64 in [0, 1): which point of the distribution."""
    words_DW: Tensor
    """int32: a bit a token that is allowed."""

    @property
    def num_rows(self) -> int:
        """Rows, padding too."""
        return self.rows_D.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """Which rows are drawn, on the host; of the same length. Meaning as in DrawArrays."""

    rows: NDArray[np.int64]
    slots: NDArray[np.int32]
    positions: NDArray[np.int32]
    masks: NDArray[np.int32]
    uniforms: NDArray[np.float64]


class DrawSlab:
    """The device's piece; a step's overwrites that of the one before, in the order of launches."""

    def __init__(self, device: torch.device, *, max_rows: int, num_words: int) -> None:
        self._memory = torch.zeros(_packed_size(max_rows), dtype=torch.int32, device=device)
        self._words_DW = torch.zeros((max_rows, num_words), dtype=torch.int32, device=device)

    def arrays(self, num_rows: int) -> DrawArrays:
        """Returns where a bucket's arrays are found."""
        stride = _stride(num_rows)
        fields = self._memory[: _NUM_FIELDS * stride].view(_NUM_FIELDS, stride)[:, :num_rows]
        uniforms = self._memory[_NUM_FIELDS * stride : _packed_size(num_rows)]
        return DrawArrays(
            rows_D=fields[0],
            slots_D=fields[1],
            positions_D=fields[2],
            masks_D=fields[3],
            uniforms_D=uniforms.view(torch.float64)[:num_rows],
            words_DW=self._words_DW,
        )

    def take(self, staged: "DrawStage", bucket: int, *, num_masks: int) -> None:
        """Launches the copy of a step's, and of so many masks."""
        size = _packed_size(bucket)
        self._memory[:size].copy_(staged.memory[:size], non_blocking=True)
        if num_masks:
            self._words_DW[:num_masks].copy_(staged.words[:num_masks], non_blocking=True)
        staged.taken()


class DrawStage:
    """A piece on the host, reused behind the event that its last copy is done."""

    def __init__(self, *, max_rows: int, num_words: int, pinned: bool) -> None:
        self.memory = torch.zeros(_packed_size(max_rows), dtype=torch.int32, pin_memory=pinned)
        self.words = torch.zeros((max_rows, num_words), dtype=torch.int32, pin_memory=pinned)
        self._array: NDArray[np.int32] = self.memory.numpy()
        self._words: NDArray[np.int32] = self.words.numpy()
        self._copied = torch.cuda.Event() if pinned else None

    def pack(self, drawn: DrawnRows, bucket: int, words: NDArray[np.int32] | None) -> None:
        """Waits for its last copy if need be, and copies a step's draws in, padded.

        Args:
            drawn: Not more than the bucket's rows.
            bucket: Holds them.
            words: [G, W] the masks; None: there are none.
        """
        if self._copied is not None:
            self._copied.synchronize()
        num_rows, stride = len(drawn.rows), _stride(bucket)
        fields = self._array[: _NUM_FIELDS * stride].reshape(_NUM_FIELDS, stride)
        fields[0, :num_rows] = drawn.rows
        fields[0, num_rows:bucket] = -1
        fields[1, :num_rows] = drawn.slots
        fields[2, :num_rows] = drawn.positions
        fields[3, :num_rows] = drawn.masks
        uniforms = self._array[_NUM_FIELDS * stride : _packed_size(bucket)].view(np.float64)
        uniforms[:num_rows] = drawn.uniforms
        if words is not None:
            self._words[: len(words)] = words

    def taken(self) -> None:
        """Notes that a copy was launched."""
        if self._copied is not None:
            self._copied.record()


def _packed_size(num_rows: int) -> int:
    """Returns how many integers a bucket's arrays are."""
    return (_NUM_FIELDS + _WORDS_OF_A_UNIFORM) * _stride(num_rows)


def _stride(num_rows: int) -> int:
    return -(-num_rows // _ALIGNMENT) * _ALIGNMENT
