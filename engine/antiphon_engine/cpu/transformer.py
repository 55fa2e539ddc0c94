"""The decoder-only transformer of the Llama and Qwen families, computed by the CPU's kernels.

Shape suffixes: T tokens, S some of them, H hidden size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _kernels
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cpu.kernel_choice import KernelChooser, by_name
from antiphon_engine.cpu.packed_cache import PackedCache
from antiphon_engine.cpu.packed_loading import WeightsToLoad, load_packed
from antiphon_engine.cpu.products import Products
from antiphon_engine.cpu.programs import (
    Frequencies,
    LayersProgram,
    LogitsProgram,
    ProgramSettings,
    make_layers,
    make_logits,
)
from antiphon_engine.cpu.weights import CpuWeights, Packer
from antiphon_engine.kv_tensors import KvTensors
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.random_weights import fill_randomly
from antiphon_engine.model.rope import rope_frequencies

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSettings:
    """How a model computes on the CPU."""

    products: Products
    isa: str
    """The instruction set, of products too where nothing chooses theirs."""
    num_threads: int
    max_step_tokens: int
    max_logits: int
    """Tokens whose logits are asked for at once."""
    packed_cache: PackedCache | None = None
    chooser: KernelChooser | None = None


class CpuTransformer:
    """A model as programs. A step is two calls: one for all layers, one for the logits.

    What it returns lies in its own memory, and holds until the next call.
    """

    def __init__(
        self, config: ModelConfig, *, part: Partition, dtype: torch.dtype, settings: CpuSettings
    ) -> None:
        assert part.size == 1, "the CPU is one device"
        self._config = config
        self._settings = settings
        self._kv_type = "bfloat16" if dtype is torch.bfloat16 else "float32"
        self._team = _kernels.ThreadTeam(settings.num_threads)
        self._layers: LayersProgram | None = None
        self._logits: LogitsProgram | None = None
        self._bound: KvTensors | None = None
        self._product_isas: Mapping[str, str] = {}

    @property
    def kernels(self) -> Mapping[str, str]:
        """See LanguageModel."""
        products = {f"products.{form}": isa for form, isa in self._product_isas.items()}
        return {"attention": self._settings.isa, **products}

    @property
    def num_calls(self) -> int:
        """How many native calls have computed something so far."""
        assert self._layers is not None
        assert self._logits is not None
        return self._layers.program.num_runs + self._logits.program.num_runs

    def load(self, checkpoint: Path, *, on_progress: OnProgress) -> None:
        """Reads and packs the weights. Raises StartupError where they aren't the model's."""
        weights = load_packed(
            self._wanted(), checkpoint, cache=self._settings.packed_cache, on_progress=on_progress
        )
        self._make_programs(weights)

    def load_random(self, seed: int, *, on_progress: OnProgress) -> None:
        """See LanguageModel."""
        packer = Packer(self._settings.num_threads)
        try:
            weights = self._wanted().empty(packer)
            fill_randomly(weights.targets, seed=seed, on_progress=on_progress)
        finally:
            packer.close()
        self._make_programs(weights)

    def hidden_states(self, batch: StepBatch) -> Tensor:
        """See LanguageModel: float32 [T, H]."""
        assert self._layers is not None
        self._bind(batch.kv)
        rows = batch.rows
        self._layers.program.run_step(
            token_ids=batch.input_ids_T.numpy(),
            positions=batch.positions_T.numpy(),
            slot_mapping=rows.slot_mapping[0].numpy(),
            row_tokens=rows.num_tokens,
            row_starts=rows.token_starts,
            row_contexts=rows.context_tokens,
            row_slots=rows.slots,
            block_tables=rows.block_tables[0].numpy(),
        )
        return torch.from_numpy(self._layers.hidden)[: len(batch.input_ids_T)]

    def logits(self, hidden_TH: Tensor, rows_S: Tensor) -> Tensor:
        """See LanguageModel: [S, V]."""
        assert self._logits is not None
        num_tokens = len(rows_S)
        logits_SV = torch.from_numpy(self._logits.logits)[:num_tokens]
        if num_tokens:
            sampled_SH = torch.from_numpy(self._logits.hidden)[:num_tokens]
            torch.index_select(hidden_TH, 0, rows_S, out=sampled_SH)
            self._logits.program.run(num_tokens)
        return logits_SV

    def likeliest(self, num_rows: int) -> Tensor:
        """See LanguageModel: int32 [S]."""
        assert self._logits is not None
        # A copy: those of scored tokens take their place before these are used.
        return torch.from_numpy(self._logits.likeliest[:num_rows].copy())

    def _wanted(self) -> WeightsToLoad:
        settings = self._settings
        if settings.chooser is None:
            isas = by_name(settings.products, settings.isa)
        else:
            isas = settings.chooser.choose(settings.products, settings.num_threads)
        self._product_isas = isas
        _log.info("kernels", products=isas, others=settings.isa, num_threads=settings.num_threads)
        return WeightsToLoad(
            config=self._config,
            products=settings.products,
            isas=isas,
            num_threads=settings.num_threads,
        )

    def _make_programs(self, weights: CpuWeights) -> None:
        config, settings = self._config, self._settings
        inverse_F, scale = rope_frequencies(config.rope, config.head_dim)
        frequencies = Frequencies(inverse=inverse_F.numpy(), scale=scale)
        self._layers = make_layers(
            config, weights, frequencies, self._program_settings(settings.max_step_tokens)
        )
        self._logits = make_logits(config, weights, self._program_settings(settings.max_logits))

    def _program_settings(self, max_tokens: int) -> ProgramSettings:
        return ProgramSettings(
            team=self._team, isa=self._settings.isa, kv_type=self._kv_type, max_tokens=max_tokens
        )

    def _bind(self, kv: KvTensors) -> None:
        if self._bound is kv:
            return
        assert self._layers is not None
        layers = [kv.layer(index) for index in range(kv.layout.num_layers)]
        self._layers.program.bind_cache([(_pool(keys), _pool(values)) for keys, values in layers])
        self._bound = kv


def _pool(pool_PBKD: Tensor) -> NDArray[np.generic]:
    """Returns a pool of the cache as an array; bfloat16 as its bits."""
    if pool_PBKD.dtype is torch.bfloat16:
        return pool_PBKD.view(torch.int16).numpy().view(np.uint16)
    array: NDArray[np.generic] = pool_PBKD.numpy()
    return array
