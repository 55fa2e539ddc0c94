"""Computes planned steps on the device: the model, the KV cache and the tables that steps read.

A step is computed from the plan's arrays and the slot tables alone, so that a plan can be replayed
elsewhere. A slot is a running request's row in the tables.

Shape suffixes: T tokens of a step, R its rows, S its sampled rows, V vocabulary, M blocks of the
longest context.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.attention.base import StepRows
from antiphon_engine.attention.torch_sdpa import TorchSdpa
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cpu_topology import num_physical_cores
from antiphon_engine.kv_tensors import KvLayout, KvTensors
from antiphon_engine.memory_plan import (
    MemoryNeeds,
    MemoryPlan,
    available_memory_bytes,
    plan_memory,
)
from antiphon_engine.model.base import ModelRegistry
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig, parse_model_config
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.registry import default_registry
from antiphon_engine.step_executor import StepBuffers, make_buffers

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


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
        on_progress: OnProgress = lambda stage, done, total: None,
        num_buffer_sets: int = 2,
    ) -> None:
        registry = registry or default_registry()
        if config.device != "cpu":
            raise StartupError(f"engine.device {config.device!r} is not supported yet: only cpu is")
        torch.set_num_threads(config.num_threads or num_physical_cores())
        self.model_config = parse_model_config(
            Fields.read(checkpoint / "config.json"), supported=registry.architectures
        )
        self.dtype_name = _dtype_name(config, self.model_config)
        self._dtype = _DTYPES[self.dtype_name]
        part = Partition()
        self.memory = _plan_memory(config, self.model_config, part, self._dtype)

        with torch.inference_mode():
            self._model = registry.build(self.model_config, part=part, dtype=self._dtype)
            self._model.load(checkpoint, on_progress=on_progress)
            self._kv = KvTensors(_layout(self.model_config, self.memory, part, self._dtype))
        self._attention = TorchSdpa(self._dtype)

        max_blocks = -(-self.memory.context_tokens // config.block_tokens)
        self._block_table_SM = np.zeros((config.max_rows, max_blocks), dtype=np.int64)
        self._last_tokens = np.zeros(config.max_rows, dtype=np.int64)
        self._buffer_sets = [
            make_buffers(config, max_blocks=max_blocks) for _ in range(num_buffer_sets)
        ]

    def buffers(self, set_index: int) -> StepBuffers:
        """Returns the arrays of a set; always the same ones, which the core fills."""
        return self._buffer_sets[set_index]

    @torch.inference_mode()
    def execute(self, set_index: int) -> Tensor:
        """Computes the step that the set describes.

        Returns:
            The logits of the sampled positions, [S, V] float32. They are the caller's to overwrite.
        """
        step = self._buffer_sets[set_index]
        header = step["header"]
        num_rows = int(header[_native.HEADER_NUM_ROWS])
        num_tokens = int(header[_native.HEADER_NUM_TOKENS])
        assert not header[_native.HEADER_NUM_COPIES], "the core of this release plans no copies"
        self._apply_table_deltas(step["table_delta"][: header[_native.HEADER_NUM_TABLE_DELTAS]])

        rows = StepRows(
            num_tokens=step["q_len"][:num_rows],
            token_starts=step["cu_q"][:num_rows],
            context_tokens=step["ctx_len"][:num_rows],
            block_tables=(torch.from_numpy(self._block_table_SM[step["slot"][:num_rows]]),),
            slot_mapping=(torch.from_numpy(step["slot_mapping"][:num_tokens]),),
        )
        num_samples = int(step["sample_indptr"][num_rows])
        batch = StepBatch(
            input_ids_T=torch.from_numpy(self._input_ids(step, num_tokens)),
            positions_T=torch.from_numpy(step["positions"][:num_tokens]).long(),
            sample_rows_S=torch.from_numpy(step["sample_rows"][:num_samples]).long(),
            attention=self._attention.prepare(rows, self._kv),
        )
        return self._model.logits(batch)

    def store_tokens(self, set_index: int, tokens: Tensor) -> None:
        """Keeps what was sampled, [S] int32: the slots' last tokens and the set's, for commit."""
        step = self._buffer_sets[set_index]
        num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
        num_samples_R = np.diff(step["sample_indptr"][: num_rows + 1])
        step["num_tokens"][:num_rows] = num_samples_R
        sampled = np.flatnonzero(num_samples_R)
        assert len(sampled) == len(tokens)
        step["tokens"][sampled, 0] = tokens.numpy()
        self._last_tokens[step["slot"][sampled]] = step["tokens"][sampled, 0]

    def _apply_table_deltas(self, deltas: NDArray[np.int32]) -> None:
        self._block_table_SM[deltas[:, 0], deltas[:, 1]] = deltas[:, 2]

    def _input_ids(self, step: StepBuffers, num_tokens: int) -> NDArray[np.int64]:
        slots = step["gather_slot"][:num_tokens]
        last_tokens = self._last_tokens[np.maximum(slots, 0)]
        return np.where(slots >= 0, last_tokens, step["input_ids"][:num_tokens])


def _dtype_name(config: EngineConfig, model: ModelConfig) -> str:
    # Half precision is slow on CPUs; float32 holds all its values, bfloat16 doesn't.
    automatic = "float32" if model.dtype == "float16" else model.dtype
    name = automatic if config.dtype == "auto" else config.dtype
    if name not in _DTYPES:
        raise StartupError(
            f"engine.dtype {config.dtype!r} is not supported: auto, bfloat16 or float32"
        )
    return name


def _plan_memory(
    config: EngineConfig, model: ModelConfig, part: Partition, dtype: torch.dtype
) -> MemoryPlan:
    num_kv_heads = part.share(model.num_kv_heads, "key-value heads")
    # A token's hidden states, projections and feed-forward features are alive at once, some twice.
    widest = 4 * model.hidden_size + 4 * model.intermediate_size
    step_bytes = 4 * (config.max_step_tokens * widest + config.max_rows * model.vocabulary_size)
    needs = MemoryNeeds(
        weights_bytes=model.num_parameters() * dtype.itemsize,
        kv_token_bytes=2 * model.num_layers * num_kv_heads * model.head_dim * dtype.itemsize,
        step_bytes=step_bytes,
    )
    return plan_memory(
        config,
        needs,
        model_context_tokens=model.context_tokens,
        available_bytes=available_memory_bytes(),
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
    )
