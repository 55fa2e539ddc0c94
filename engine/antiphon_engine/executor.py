"""Computes planned steps on the device: the model, the KV cache and the tables that steps read.

A step is computed from the plan's arrays and the slot tables alone, so that a plan can be replayed
elsewhere. On CUDA a step is launched, not waited for: `wait` does that.

Shape suffixes: T tokens of a step, R its rows, S its sampled rows, H hidden size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.attention.base import StepRows
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.slot_draws import SlotDraws
from antiphon_engine.device import Device, Fence, PassedFence
from antiphon_engine.kv_copies import carry_out_planned, make_copier, staged_blocks
from antiphon_engine.kv_tensors import HostKv, KvLayout, KvTensors
from antiphon_engine.memory_plan import MemoryNeeds, MemoryPlan, plan_memory
from antiphon_engine.model.base import ModelRegistry
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig, parse_model_config
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.registry import default_registry
from antiphon_engine.model_plan import ModelPlan, ModelPlanner
from antiphon_engine.prompt_scores import (
    SLICE_COPIES,
    ScoredTokens,
    TokenScores,
    score_tokens,
    slice_tokens,
)
from antiphon_engine.slot_tables import make_slot_tables
from antiphon_engine.step_executor import StepBuffers, make_buffers, sampled_rows

_NO_TOKENS = torch.empty(0)


@dataclass(slots=True)
class _Launch:
    """What is under way of a step."""

    copied: Fence
    computed: Fence
    tokens: NDArray[np.int32]
    """[S] int32, complete behind `computed`."""
    hidden_TH: Tensor
    """What the model made of the step's tokens; until the launch ends."""
    likeliest_S: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOrigin:
    """Where weights come from, beside the checkpoint."""

    random_seed: int | None = None
    """Makes them, so that only the checkpoint's configuration is read; None: the checkpoint has."""
    cache_dir: Path | None = None
    """Where they may be kept as they are computed with, for later starts; None: nowhere."""


_CHECKPOINT = WeightOrigin()


class Executor:
    """One model with its cache. All calls come from the engine's one thread.

    Raises:
        StartupError: the checkpoint can't be served with this configuration. Everything that can be
            known from configuration and headers is checked before weights are read.
    """

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Path,
        *,
        registry: ModelRegistry | None = None,
        weights: WeightOrigin = _CHECKPOINT,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> None:
        self.device = Device.open(config.device)
        self.model_config = parse_model_config(
            Fields.read(checkpoint / "config.json"),
            supported=(registry or default_registry()).architectures,
        )
        part = Partition()
        planner = ModelPlanner(
            config, device=self.device, part=part, registry=registry, cache_dir=weights.cache_dir
        )
        plan = planner.plan(self.model_config, checkpoint)
        torch.set_num_threads(plan.num_torch_threads)
        self.quantization = plan.quantization
        self.dtype_name = str(plan.dtype).removeprefix("torch.")
        self.memory = _plan_memory(config, self.model_config, part, plan, self.device)

        with torch.inference_mode():
            with self.device.torch_device:
                self._model = plan.build()
            if weights.random_seed is None:
                self._model.load(checkpoint, on_progress=on_progress)
            else:
                self._model.load_random(weights.random_seed, on_progress=on_progress)
            layout = _layout(self.model_config, self.memory, part, plan.dtype)
            self._kv = KvTensors(layout, self.device.torch_device)
            host = HostKv(layout, pinned=self.device.is_cuda) if layout.num_host_blocks else None
            self._copier = make_copier(self._kv, host, self.device)
            max_blocks = -(-self.memory.context_tokens // config.block_tokens)
            self._slots = make_slot_tables(
                self.device,
                num_slots=config.max_rows,
                max_blocks=max_blocks,
                max_step_tokens=config.max_step_tokens,
            )
            self.draws = self._make_draws(config.max_rows) if self.device.is_cuda else None
        self._buffer_sets = [
            make_buffers(config, max_blocks=max_blocks, pinned=self.device.is_cuda)
            for _ in range(config.num_buffer_sets)
        ]
        self._launches: list[_Launch | None] = [None] * config.num_buffer_sets

    @property
    def kernels(self) -> Mapping[str, str]:
        """See LanguageModel."""
        return self._model.kernels

    def buffers(self, set_index: int) -> StepBuffers:
        """Returns the arrays of a set; always the same ones, which the core fills."""
        return self._buffer_sets[set_index]

    @torch.inference_mode()
    def execute(self, set_index: int) -> Tensor:
        """See StepExecutor."""
        assert self._launches[set_index] is None, "the set's last step has not been waited for"
        step = self._buffer_sets[set_index]
        header = step["header"]
        copied = carry_out_planned(self._copier, step)
        launch = _Launch(copied, PassedFence(), np.zeros(0, np.int32), _NO_TOKENS)
        self._launches[set_index] = launch
        self._slots.change_blocks(step["table_delta"][: header[_native.HEADER_NUM_TABLE_DELTAS]])
        if not header[_native.HEADER_NUM_ROWS]:
            return torch.empty(
                (0, self.model_config.vocabulary_size), device=self.device.torch_device
            )
        launch.hidden_TH = self._model.hidden_states(self._batch(step))
        num_samples = int(step["sample_indptr"][header[_native.HEADER_NUM_ROWS]])
        sample_rows_S = self.device.upload(step["sample_rows"][:num_samples])
        logits_SV = self._model.logits(launch.hidden_TH, sample_rows_S)
        launch.likeliest_S = self._model.likeliest(num_samples)
        return logits_SV

    def overlapped_ns(self, set_index: int) -> int:
        """See StepExecutor."""
        return 0

    def likeliest(self, set_index: int) -> Tensor | None:
        """See StepExecutor."""
        launch = self._launches[set_index]
        assert launch is not None
        return launch.likeliest_S

    @torch.inference_mode()
    def score(self, set_index: int, scored: ScoredTokens) -> TokenScores:
        """See StepExecutor."""
        launch = self._launches[set_index]
        assert launch is not None
        return score_tokens(
            lambda rows_S: self._model.logits(launch.hidden_TH, rows_S),
            scored,
            vocabulary_size=self.model_config.vocabulary_size,
            device=self.device,
        )

    @torch.inference_mode()
    def store_tokens(self, set_index: int, tokens: Tensor) -> None:
        """See StepExecutor."""
        step, launch = self._buffer_sets[set_index], self._launches[set_index]
        assert launch is not None
        sampled = sampled_rows(step)
        assert len(sampled) == len(tokens)
        if len(sampled):
            self._slots.set_last_tokens(step["slot"][sampled], tokens)
        launch.hidden_TH = _NO_TOKENS
        launch.tokens = self.device.download(tokens, np.int32)
        launch.computed = self.device.fence()

    def wait(self, set_index: int) -> None:
        """See StepExecutor."""
        step, launch = self._buffer_sets[set_index], self._launches[set_index]
        assert launch is not None
        launch.copied.synchronize()
        launch.computed.synchronize()
        self._launches[set_index] = None
        num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
        step["num_tokens"][:num_rows] = np.diff(step["sample_indptr"][: num_rows + 1])
        step["tokens"][sampled_rows(step), 0] = launch.tokens

    def _make_draws(self, max_rows: int) -> SlotDraws:
        device = self.device.torch_device
        return SlotDraws(
            max_rows=max_rows,
            vocabulary_size=self.model_config.vocabulary_size,
            # Those of steps are kept with the rest of a step.
            last_tokens_S=torch.zeros(max_rows, dtype=torch.int32, device=device),
            device=self.device,
        )

    def _batch(self, step: StepBuffers) -> StepBatch:
        num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
        num_tokens = int(step["header"][_native.HEADER_NUM_TOKENS])
        upload = self.device.upload
        rows = StepRows(
            num_tokens=step["q_len"][:num_rows],
            token_starts=step["cu_q"][:num_rows],
            context_tokens=step["ctx_len"][:num_rows],
            slots=step["slot"][:num_rows],
            block_tables=(self._slots.blocks_SM,),
            slot_mapping=(upload(step["slot_mapping"][:num_tokens]),),
        )
        return StepBatch(
            input_ids_T=self._slots.known_ids(
                step["input_ids"][:num_tokens], step["gather_slot"][:num_tokens]
            ),
            positions_T=upload(step["positions"][:num_tokens]),
            rows=rows,
            kv=self._kv,
        )


def _plan_memory(
    config: EngineConfig, model: ModelConfig, part: Partition, plan: ModelPlan, device: Device
) -> MemoryPlan:
    num_kv_heads = part.share(model.num_kv_heads, "key-value heads")
    # A token's hidden states, projections and feed-forward features are alive at once, some twice.
    widest = 4 * model.hidden_size + 4 * model.intermediate_size
    # On CUDA what penalties, masks and log-probabilities make of rows lies beside the logits.
    copies = 4 if device.is_cuda else 1
    logits = copies * config.max_rows * model.vocabulary_size
    num_scored = min(slice_tokens(model.vocabulary_size), config.max_step_tokens)
    logits += SLICE_COPIES * num_scored * model.vocabulary_size
    needs = MemoryNeeds(
        weights_bytes=plan.weights_bytes,
        kv_token_bytes=2 * model.num_layers * num_kv_heads * model.head_dim * plan.dtype.itemsize,
        step_bytes=4 * (config.max_step_tokens * widest + logits),
        num_staged_blocks=staged_blocks(device) if config.host_cache_bytes else 0,
    )
    return plan_memory(
        config,
        needs,
        model_context_tokens=model.context_tokens,
        available=device.available_memory(),
    )


def _layout(
    model: ModelConfig, memory: MemoryPlan, part: Partition, dtype: torch.dtype
) -> KvLayout:
    return KvLayout(
        num_layers=model.num_layers,
        num_blocks=memory.num_blocks,
        block_tokens=memory.block_tokens,
        num_kv_heads=part.share(model.num_kv_heads, "key-value heads"),
        head_dim=model.head_dim,
        dtype=dtype,
        num_host_blocks=memory.num_host_blocks,
    )
