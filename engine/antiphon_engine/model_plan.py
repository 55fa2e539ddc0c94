"""How a model will be computed, and what its weights will take: decided before they are read."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.shards import stored_kinds
from antiphon_engine.cpu_topology import num_physical_cores
from antiphon_engine.device import Device
from antiphon_engine.kv_format import wide_kv_cache_dtype
from antiphon_engine.model.base import LanguageModel, ModelRegistry
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.registry import default_registry
from antiphon_engine.prompt_scores import slice_tokens
from antiphon_engine.quantization import BY_TORCH, ON_CPU, Quantization

_DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_TORCH: Final = "torch"
_AUTO: Final = "auto"
_BY_TORCH_ON_CPU: Final = f"engine.cpu_kernels = {_TORCH}"
_BY_KERNELS_ON_CPU: Final = (
    f"the CPU's own kernels quantize so, with engine.device = cpu and engine.cpu_kernels = {_AUTO}"
)
_KNOWN_ELSEWHERE: Final = {
    Quantization.INT8: _BY_KERNELS_ON_CPU,
    Quantization.INT4: _BY_KERNELS_ON_CPU,
    Quantization.FP8: "the kernels for CUDA quantize so, with engine.device = cuda",
}
_ISAS: Final = ("portable", "avx2", "avx512", "avx512_bf16", "amx", "avx_vnni", "avx512_vnni")
_IN_FLOAT32: Final = {
    "avx512_bf16": "avx512",
    "amx": "avx512",
    "avx_vnni": "avx2",
    "avx512_vnni": "avx512",
}
"""What takes the place of those that would cut float32 rows short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A model that can be built."""

    build: Callable[[], LanguageModel]
    """Makes the model without weights. Raises StartupError."""
    dtype: torch.dtype
    """Of the cache, and of weights that aren't quantized."""
    weights_bytes: int
    quantization: str
    """What the model says of itself; empty: nothing is quantized."""
    num_torch_threads: int
    """For PyTorch's operators in this process."""


class ModelPlanner:
    """Decides by the settings.

    Args:
        config: The engine's settings.
        device: Where the model computes.
        part: What of it is this process's.
        registry: Models that take the place of the engine's own; None: none does.
        cache_dir: Where packed weights may be kept; None: nowhere.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        device: Device,
        part: Partition,
        registry: ModelRegistry | None,
        cache_dir: Path | None = None,
    ) -> None:
        self._config = config
        self._device = device
        self._part = part
        self._registry = registry
        self._cache_dir = cache_dir
        self._num_threads = config.num_threads or num_physical_cores()

    def plan(self, model: ModelConfig, checkpoint: Path) -> ModelPlan:
        """Returns how to compute a model, whose weights are in a directory.

        Raises:
            StartupError: the settings ask for what there isn't on this device or this machine.
        """
        if self._device.is_cuda or self._config.cpu_kernels == _TORCH:
            where = "PyTorch's operators on cuda" if self._device.is_cuda else _BY_TORCH_ON_CPU
            return self._plan_torch(model, where=where)
        if self._registry is not None:
            return self._plan_torch(model, where="models of a registry")
        where = "engine.device = cpu"
        asked = asked_quantization(self._config, ON_CPU, where=where)
        wide_kv_cache_dtype(self._config, model_dtype(self._config, model), where=where)
        return self._plan_kernels(model, asked, stored_kinds(checkpoint))

    def _plan_torch(self, model: ModelConfig, *, where: str) -> ModelPlan:
        asked_quantization(self._config, BY_TORCH, where=where)
        dtype = wide_kv_cache_dtype(self._config, model_dtype(self._config, model), where=where)
        registry = self._registry or default_registry()
        return ModelPlan(
            build=partial(registry.build, model, part=self._part, dtype=dtype),
            dtype=dtype,
            weights_bytes=model.num_parameters() * dtype.itemsize,
            quantization="",
            num_torch_threads=self._num_threads,
        )

    def _plan_kernels(
        self, model: ModelConfig, asked: Quantization, kinds: Mapping[str, str]
    ) -> ModelPlan:
        # PyTorch's operators do without the kernels.
        from antiphon_engine.cpu.kernel_choice import KernelChooser
        from antiphon_engine.cpu.packed_cache import PackedCache
        from antiphon_engine.cpu.products import plan_products
        from antiphon_engine.cpu.transformer import CpuSettings, CpuTransformer

        config, name = self._config, _dtype_name(self._config, model)
        products = plan_products(model, dtype=name, quantization=asked, kinds=kinds)
        num_scored = min(slice_tokens(model.vocabulary_size), config.max_step_tokens)
        cache, chooser = None, None
        if self._cache_dir is not None:
            directory = self._cache_dir / "packed"
            if config.packed_cache_bytes:
                cache = PackedCache(directory=directory, max_bytes=config.packed_cache_bytes)
            if config.cpu_kernels == _AUTO and name == "bfloat16":
                chooser = KernelChooser(directory=directory)
        settings = CpuSettings(
            packed_cache=cache,
            chooser=chooser,
            products=products,
            isa=_isa(config, name),
            num_threads=self._num_threads,
            max_step_tokens=config.max_step_tokens,
            max_logits=max(config.max_rows, num_scored),
        )
        dtype = _DTYPES[name]
        return ModelPlan(
            build=partial(CpuTransformer, model, part=self._part, dtype=dtype, settings=settings),
            dtype=dtype,
            weights_bytes=sum(matrix.num_bytes for matrix in products.matrices()),
            quantization=products.quantization,
            # A second team would spin on the cores of the kernels' own while those compute.
            num_torch_threads=1,
        )


def model_dtype(config: EngineConfig, model: ModelConfig) -> torch.dtype:
    """Returns the type that the engine computes in. Raises StartupError for an unknown one."""
    return _DTYPES[_dtype_name(config, model)]


def _dtype_name(config: EngineConfig, model: ModelConfig) -> str:
    """Returns the type that the engine computes in. Raises StartupError for an unknown one."""
    # Half precision is slow on CPUs; float32 holds all its values, bfloat16 doesn't.
    automatic = "float32" if model.dtype == "float16" else model.dtype
    name = automatic if config.dtype == "auto" else config.dtype
    if name not in _DTYPES:
        raise StartupError(
            f"engine.dtype {config.dtype!r} is not supported: auto, bfloat16 or float32"
        )
    return name


def asked_quantization(
    config: EngineConfig, known: Collection[Quantization], *, where: str
) -> Quantization:
    """Returns what the settings ask for. Raises StartupError where it isn't known there."""
    try:
        asked = Quantization(config.quantization)
    except ValueError:
        names = ", ".join(Quantization)
        raise StartupError(
            f"engine.quantization {config.quantization!r} is not supported: {names}"
        ) from None
    if asked not in known:
        raise StartupError(
            f"engine.quantization = {asked} is not supported with {where}: {', '.join(known)} are; "
            f"{_KNOWN_ELSEWHERE[asked]}"
        )
    return asked


def _isa(config: EngineConfig, dtype: str) -> str:
    """Returns the instruction set that models of a type use."""
    if config.cpu_kernels not in (_AUTO, *_ISAS):
        known = ", ".join((_AUTO, _TORCH, *_ISAS))
        raise StartupError(f"engine.cpu_kernels {config.cpu_kernels!r} is not known: {known}")
    from antiphon_engine import _kernels

    best = _kernels.best_isa()
    asked = best if config.cpu_kernels == _AUTO else config.cpu_kernels
    if not _kernels.has_isa(asked):
        raise StartupError(
            f"engine.cpu_kernels is {asked}, but this machine goes up to {best}; auto takes "
            "what is quickest here"
        )
    return _IN_FLOAT32.get(asked, asked) if dtype == "float32" else asked
