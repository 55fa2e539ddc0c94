"""The decoder-only transformer of the Llama and Qwen families.

Shape suffixes: T tokens, S some of them, H hidden size, V vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon_engine.attention.torch_sdpa import TorchSdpa
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import find_shards
from antiphon_engine.device import Device
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.layers import DecoderLayer, RmsNorm
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.random_weights import fill_randomly
from antiphon_engine.model.rope import Rope
from antiphon_engine.model.transformer_weights import EMBEDDING, HEAD, weight_targets
from antiphon_engine.model.weights import TiedHead, load_weights

_TORCH: Final = "torch"


class Transformer(nn.Module):
    """One class for every family: `ModelConfig` says where they differ.

    Embedding and output matrix are whole on every rank.
    """

    def __init__(self, config: ModelConfig, *, part: Partition, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        self._part = part
        self._dtype = dtype
        self._rope = Rope(config.rope, config.head_dim)
        self._attention = TorchSdpa(dtype, Device(torch.get_default_device().type))
        self.embedding = nn.Parameter(
            torch.empty(config.vocabulary_size, config.hidden_size, dtype=dtype),
            requires_grad=False,
        )
        self.layers = [
            DecoderLayer(config, layer, part, dtype) for layer in range(config.num_layers)
        ]
        self._registered_layers = nn.ModuleList(self.layers)
        self.norm = RmsNorm(config.hidden_size, epsilon=config.norm_epsilon, dtype=dtype)
        self.head = Linear(config.hidden_size, config.vocabulary_size, bias=False, dtype=dtype)
        if config.tied_embeddings:
            self.head.tie(self.embedding)

    @property
    def kernels(self) -> Mapping[str, str]:
        """See LanguageModel."""
        weight_format = str(self._dtype).removeprefix("torch.")
        return {"attention": _TORCH, f"products.{weight_format}": _TORCH}

    def load(self, checkpoint: Path, *, on_progress: OnProgress) -> None:
        """Reads the weights. Raises StartupError where they aren't exactly the model's."""
        load_weights(
            find_shards(checkpoint),
            weight_targets(self, self._config, self._part),
            tied=TiedHead(head=HEAD, embedding=EMBEDDING) if self._config.tied_embeddings else None,
            on_progress=on_progress,
        )

    def load_random(self, seed: int, *, on_progress: OnProgress) -> None:
        """See LanguageModel."""
        targets = weight_targets(self, self._config, self._part)
        fill_randomly(targets, seed=seed, on_progress=on_progress)

    def hidden_states(self, batch: StepBatch) -> Tensor:
        """See LanguageModel: [T, H], before the last norm."""
        x_TH = functional.embedding(batch.input_ids_T, self.embedding)
        rotation = self._rope.rotation(batch.positions_T, self._dtype)
        attention = self._attention.prepare(batch.rows, batch.kv)
        for layer in self.layers:
            x_TH = layer(x_TH, rotation, attention)
        return x_TH

    def logits(self, hidden_TH: Tensor, rows_S: Tensor) -> Tensor:
        """See LanguageModel: [S, V]."""
        logits_SV: Tensor = self.head(self.norm(hidden_TH.index_select(0, rows_S)))
        return logits_SV.float()

    def likeliest(self, num_rows: int) -> Tensor | None:
        """See LanguageModel: it doesn't look for them."""
        return None
