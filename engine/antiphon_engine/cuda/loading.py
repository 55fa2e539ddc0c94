"""Loads a model onto a CUDA device: weights, the largest step, the cache, captured steps."""

import gc
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.buckets import CHUNK_ROWS, decode_buckets
from antiphon_engine.cuda.executor import CudaExecutor, ModelSizes
from antiphon_engine.cuda.graphs import CudaRecorder
from antiphon_engine.cuda.memory import measure_memory, plan_device_memory
from antiphon_engine.cuda.model import GraphModel
from antiphon_engine.cuda.transformer import CudaSettings, CudaTransformer
from antiphon_engine.device import Device
from antiphon_engine.engine_process import LoadedModel, ModelFacts
from antiphon_engine.executor import WeightOrigin
from antiphon_engine.kv_copies import make_copier, staged_blocks
from antiphon_engine.kv_format import dtype_name
from antiphon_engine.kv_tensors import HostKv, KvLayout, KvTensors
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.partition import Partition
from antiphon_engine.prompt_scores import slice_tokens
from antiphon_engine.quantization import Quantization

_log = structlog.get_logger(__name__)

_PROBE_BLOCKS = 2
"""Scratch and one more: the largest step, run to see what it takes, writes into scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLoad:
    """What is to be loaded."""

    config: EngineConfig
    checkpoint: Path
    model: ModelConfig
    dtype: torch.dtype
    kv_dtype: torch.dtype
    """Of the cache's elements."""
    quantization: Quantization
    """One that the kernels know."""
    weights: WeightOrigin
    has_stored: bool = False
    """Whether the checkpoint has matrices as 8-bit floats."""

    @property
    def narrow_weights(self) -> bool:
        """Whether layers' matrices are kept as 8-bit floats."""
        return self.quantization is Quantization.FP8

    @property
    def keeps_stored(self) -> bool:
        """Whether what the checkpoint has as 8-bit floats stays so."""
        return self.has_stored and self.quantization is not Quantization.NONE

    @property
    def context_tokens(self) -> int:
        """Of the longest context, if the cache holds it."""
        return self.config.max_context_tokens or self.model.context_tokens


def load_cuda(wanted: CudaLoad, on_progress: OnProgress) -> LoadedModel:
    """Returns the model, ready to serve.

    Raises:
        StartupError: the weights aren't the model's, or the device's memory doesn't suffice.
    """
    loader = _Loader(wanted, on_progress)
    with torch.inference_mode():
        return loader.load()


class _Loader:
    def __init__(self, wanted: CudaLoad, on_progress: OnProgress) -> None:
        self._wanted = wanted
        self._config = wanted.config
        self._on_progress = on_progress
        self._device = Device.open("cuda")
        self._model: GraphModel | None = None
        self._is_narrow = False
        self._probe: CudaExecutor | None = None

    def load(self) -> LoadedModel:
        config, model = self._config, self._wanted.model
        measured = measure_memory(self._load_weights, self._run_largest_step, self._try_capture)
        self._probe = None
        gc.collect()
        torch.cuda.empty_cache()
        layout = self._layout(_PROBE_BLOCKS, 0)
        memory = plan_device_memory(
            config,
            measured,
            kv_token_bytes=layout.token_bytes,
            num_staged_blocks=staged_blocks(self._device) if config.host_cache_bytes else 0,
            model_context_tokens=model.context_tokens,
        )
        executor = self._make_executor(
            self._layout(memory.num_blocks, memory.num_host_blocks), memory.context_tokens
        )
        assert self._model is not None
        if config.tuning_limit_s:
            self._on_progress("tune", 0, 1)
            self._model.tune(decode_buckets(config.max_rows), budget_s=config.tuning_limit_s)
            self._on_progress("tune", 1, 1)
        if config.cuda_graphs:
            executor.capture(CudaRecorder(), self._on_progress)
        _log.info(
            "memory of the device",
            weights_bytes=measured.weights_bytes,
            steps_bytes=measured.step_bytes,
            kv_cache_bytes=memory.num_blocks * config.block_tokens * layout.token_bytes,
            free_bytes=torch.cuda.mem_get_info()[0],
        )
        return LoadedModel(
            executor=executor,
            device=self._device,
            draws=executor.draws,
            facts=ModelFacts(
                architecture=model.architecture,
                dtype=dtype_name(self._wanted.dtype),
                quantization=str(Quantization.FP8) if self._is_narrow else "",
                kv_cache_dtype=dtype_name(self._wanted.kv_dtype),
                kernels=self._model.kernels,
                vocabulary_size=model.vocabulary_size,
                context_tokens=memory.context_tokens,
                num_blocks=memory.num_blocks,
                num_host_blocks=memory.num_host_blocks,
            ),
        )

    def _load_weights(self) -> None:
        config, wanted = self._config, self._wanted
        num_scored = min(slice_tokens(wanted.model.vocabulary_size), config.max_step_tokens)
        settings = CudaSettings(
            max_step_tokens=config.max_step_tokens,
            max_rows=config.max_rows,
            max_logits=max(config.max_rows + CHUNK_ROWS, num_scored),
            context_tokens=wanted.context_tokens,
            block_tokens=config.block_tokens,
            attention_backend=config.attention_backend,
            narrow_weights=wanted.narrow_weights,
            kv_dtype=wanted.kv_dtype,
            keeps_stored=wanted.keeps_stored,
            deterministic=config.deterministic,
            cache_dir=wanted.weights.cache_dir,
        )
        with self._device.torch_device:
            model = CudaTransformer(
                wanted.model, part=Partition(), dtype=wanted.dtype, settings=settings
            )
        if wanted.weights.random_seed is None:
            model.load(wanted.checkpoint, on_progress=self._on_progress)
        else:
            model.load_random(wanted.weights.random_seed, on_progress=self._on_progress)
        self._model, self._is_narrow = model, model.is_narrow
        # What weights were before they were quantized is memory for the cache.
        torch.cuda.empty_cache()

    def _run_largest_step(self) -> None:
        self._probe = self._make_executor(
            self._layout(_PROBE_BLOCKS, 0), self._wanted.context_tokens
        )
        self._probe.run_largest_step()

    def _try_capture(self) -> None:
        if self._config.cuda_graphs:
            assert self._probe is not None
            self._probe.capture_largest(CudaRecorder())

    def _make_executor(self, layout: KvLayout, context_tokens: int) -> CudaExecutor:
        kv = KvTensors(layout, self._device.torch_device)
        host = HostKv(layout, pinned=True) if layout.num_host_blocks else None
        assert self._model is not None
        self._model.bind(kv)
        return CudaExecutor(
            self._config,
            self._model,
            make_copier(kv, host, self._device),
            ModelSizes(
                max_blocks=-(-context_tokens // self._config.block_tokens),
                vocabulary_size=self._wanted.model.vocabulary_size,
            ),
            self._device,
        )

    def _layout(self, num_blocks: int, num_host_blocks: int) -> KvLayout:
        model = self._wanted.model
        return KvLayout(
            num_layers=model.num_layers,
            num_blocks=num_blocks,
            block_tokens=self._config.block_tokens,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            dtype=self._wanted.kv_dtype,
            num_host_blocks=num_host_blocks,
        )
