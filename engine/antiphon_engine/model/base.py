"""What the executor asks of a model, and which model serves which architecture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.partition import Partition


class LanguageModel(Protocol):
    """A model that computes logits. Tests may bring one that makes them up."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """Which kernels compute it, as the contract's Model tells; known once it is loaded."""

    def load(self, checkpoint: Path, *, on_progress: OnProgress) -> None:
        """Reads the weights. Raises StartupError where they aren't exactly the model's."""

    def load_random(self, seed: int, *, on_progress: OnProgress) -> None:
        """Takes weights from a seed instead; see `random_weights`."""

    def hidden_states(self, batch: StepBatch) -> Tensor:
        """Returns what the layers make of a step's tokens: [T, H]. Fills their KV cache."""

    def logits(self, hidden_TH: Tensor, rows_S: Tensor) -> Tensor:
        """Returns float32 logits behind some of those tokens: [S, V]. Reads weights alone.

        Args:
            hidden_TH: What `hidden_states` returned.
            rows_S: Places in it, int32 or int64.
        """

    def likeliest(self, num_rows: int) -> Tensor | None:
        """Returns where the largest logits stand of the rows that `logits` returned last: [S].

        int32, of equals the first, and the caller's; None where the model doesn't look for them.
        """


class ModelBuilder(Protocol):
    """Makes a model without weights."""

    def __call__(
        self, config: ModelConfig, *, part: Partition, dtype: torch.dtype
    ) -> LanguageModel:
        """Returns the model, its parameters not set yet."""


class ModelRegistry:
    """Architectures, as checkpoints name them, and their builders."""

    def __init__(self, builders: Mapping[str, ModelBuilder]) -> None:
        self._builders = dict(builders)

    @property
    def architectures(self) -> frozenset[str]:
        """The names that `build` knows."""
        return frozenset(self._builders)

    def register(self, architecture: str, builder: ModelBuilder) -> None:
        """Adds an architecture, or replaces the builder of a known one."""
        self._builders[architecture] = builder

    def build(self, config: ModelConfig, *, part: Partition, dtype: torch.dtype) -> LanguageModel:
        """Makes the model of a configuration. Raises StartupError for an unknown architecture."""
        builder = self._builders.get(config.architecture)
        if builder is None:
            raise StartupError(
                f"architecture {config.architecture} is not supported; supported: "
                + ", ".join(sorted(self._builders))
            )
        return builder(config, part=part, dtype=dtype)
