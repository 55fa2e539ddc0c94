"""The decoder-only transformer of the Llama and Qwen families, computed by CUDA kernels.

Shape suffixes: T tokens, S some of them, H hidden size, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows
from antiphon_engine.kv_tensors import KvTensors
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSettings:
    """How a model computes on CUDA."""

    max_step_tokens: int
    max_rows: int
    max_logits: int
    """Tokens whose logits are asked for at once."""
    context_tokens: int
    """Of the longest context: positions are below it."""
    deterministic: bool = False
    """Whether a token's numbers are its own, whatever is computed beside it; slower."""
    cache_dir: Path | None = None
    """Where measured choices are kept; None: nowhere."""


def supports(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Returns why the kernels can't compute a model, None where they can."""
    head_dim = config.head_dim
    if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
        return f"heads of {head_dim} features: a power of two from 16 to 256 is supported"
    if dtype not in (torch.bfloat16, torch.float32):
        return f"type {dtype}: bfloat16 and float32 are supported"
    return None


class CudaTransformer:
    """A model as a sequence of launches on the current stream; nothing in it waits.

    What it returns lies in its own memory, and holds until the next call.
    """

    def __init__(
        self, config: ModelConfig, *, part: Partition, dtype: torch.dtype, settings: CudaSettings
    ) -> None:
        raise NotImplementedError

    def load(self, checkpoint: Path, *, on_progress: OnProgress) -> None:
        """Reads the weights. Raises StartupError where they aren't exactly the model's."""
        raise NotImplementedError

    def load_random(self, seed: int) -> None:
        """Makes up weights, to measure with."""
        raise NotImplementedError

    def bind(self, kv: KvTensors) -> None:
        """Takes the cache that later calls read and write; what was captured has the old one."""
        raise NotImplementedError

    def tune(self, row_counts: tuple[int, ...], *, budget_s: float) -> None:
        """Chooses how products are computed by measuring; waits for the device.

        Comes before capturing. What is known from earlier starts costs no time; what the budget
        leaves out keeps its default.
        """
        raise NotImplementedError

    def decode(self, rows: DecodeRows) -> None:
        """Launches a decode step up to its logits. May be captured."""
        raise NotImplementedError

    def forward(self, rows: MixedRows) -> Tensor:
        """Launches a step of any rows and returns hidden states [T, H], before the last norm."""
        raise NotImplementedError

    def hidden_states(self, batch: StepBatch) -> Tensor:
        """See LanguageModel: [T, H], before the last norm."""
        raise NotImplementedError

    def logits(self, hidden_SH: Tensor) -> Tensor:
        """See LanguageModel: float32 [S, V]."""
        raise NotImplementedError
