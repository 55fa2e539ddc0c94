"""What the CUDA executor asks of a model.

Shape suffixes: T tokens, S some of them, H hidden size, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows
from antiphon_engine.kv_tensors import KvTensors


class GraphModel(Protocol):
    """A model whose steps can be captured. Tests have one that computes on the CPU."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """See LanguageModel."""

    def load(self, checkpoint: Path, *, on_progress: OnProgress) -> None:
        """Reads the weights. Raises StartupError where they aren't exactly the model's."""

    def load_random(self, seed: int, *, on_progress: OnProgress) -> None:
        """Takes weights from a seed instead."""

    def bind(self, kv: KvTensors) -> None:
        """Takes the cache that later calls read and write."""

    def tune(self, row_counts: Sequence[int], *, budget_s: float) -> None:
        """Chooses by measuring how to compute so many rows; comes before capturing."""

    def decode(self, rows: DecodeRows) -> None:
        """Launches a step of single tokens up to its logits. May be captured."""

    def forward(self, rows: MixedRows) -> Tensor:
        """Launches a step of any rows; returns hidden states [T, H]. May be captured."""

    def logits(self, hidden_SH: Tensor) -> Tensor:
        """Launches the products with the output matrix; returns float32 [S, V]."""
