"""Paged attention as the models see it.

Shape suffixes: R rows of a step, T tokens of a step, S slots, N query heads, K key-value heads, D
head dimension, M blocks of the longest context.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine.kv_tensors import KvTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of a step: which tokens belong together, and where their context lies."""

    num_tokens: NDArray[np.int32]
    """[R] tokens that the step computes."""
    token_starts: NDArray[np.int32]
    """[R] where they begin in [T]."""
    context_tokens: NDArray[np.int32]
    """[R] tokens in the cache before the step."""
    slots: NDArray[np.int32]
    """[R] whose blocks are theirs."""
    block_tables: tuple[Tensor, ...]
    """For each `kv_group`, [S, M] int32: block ids, in order; behind a row's end anything valid."""
    slot_mapping: tuple[Tensor, ...]
    """For each `kv_group`, [T] int64: where the step's keys and values go."""


class StepAttention(Protocol):
    """The attention of one step, prepared once and used by every layer."""

    def attend(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Stores keys and values in the cache and returns [T, N, D].

        Every token sees its row's context and the step's tokens of its row up to itself.
        """


class AttentionBackend(Protocol):
    """A way of computing attention on one kind of device."""

    def prepare(self, rows: StepRows, kv: KvTensors) -> StepAttention:
        """Returns the attention of a step. Nothing in it outlives the step."""
