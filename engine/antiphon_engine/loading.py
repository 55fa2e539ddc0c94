"""Loads a checkpoint into an executor, for the engine process and for those that measure."""

from pathlib import Path

import structlog
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.process import EngineStart
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.float8 import parse_float8
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.device import Device
from antiphon_engine.engine_process import LoadedModel, ModelFacts
from antiphon_engine.executor import Executor, WeightOrigin
from antiphon_engine.kv_format import kv_cache_dtype
from antiphon_engine.kv_tensors import NARROW
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model_plan import asked_quantization, model_dtype
from antiphon_engine.quantization import ON_CUDA, Quantization

_log = structlog.get_logger(__name__)

_AUTO = "auto"
_CHECKPOINT = WeightOrigin()
_LEAST_CAPABILITY = (9, 0)
"""Kernels start while those before them still run, which older devices can't."""


def load(start: EngineStart, on_progress: OnProgress) -> LoadedModel:
    """Loads the checkpoint that `start` names. Raises StartupError."""
    cache_dir = start.surroundings.cache_dir
    weights = WeightOrigin(cache_dir=Path(cache_dir) if cache_dir else None)
    return load_model(
        start.config, Path(start.checkpoint), weights=weights, on_progress=on_progress
    )


def load_model(
    config: EngineConfig,
    checkpoint: Path,
    *,
    weights: WeightOrigin = _CHECKPOINT,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> LoadedModel:
    """Loads a checkpoint, or gives its shape random weights where `weights` has a seed.

    Raises StartupError.
    """
    if Device.open(config.device).is_cuda:
        loaded = _load_cuda(config, checkpoint, weights=weights, on_progress=on_progress)
        if loaded is not None:
            return loaded
    if config.attention_backend != _AUTO:
        raise StartupError(
            f"engine.attention_backend is {config.attention_backend}, which is for the kernels on "
            "cuda; others compute this model here, and auto takes what they have"
        )
    return describe(Executor(config, checkpoint, weights=weights, on_progress=on_progress))


def describe(executor: Executor) -> LoadedModel:
    """Returns an executor with what it knows of its model."""
    model, memory = executor.model_config, executor.memory
    return LoadedModel(
        executor=executor,
        device=executor.device,
        draws=executor.draws,
        facts=ModelFacts(
            architecture=model.architecture,
            dtype=executor.dtype_name,
            quantization=executor.quantization,
            kv_cache_dtype=executor.dtype_name,
            kernels=executor.kernels,
            vocabulary_size=model.vocabulary_size,
            context_tokens=memory.context_tokens,
            num_blocks=memory.num_blocks,
            num_host_blocks=memory.num_host_blocks,
        ),
    )


def lacking_capability(capability: tuple[int, int]) -> str | None:
    """Returns why the kernels can't run on a device of this compute capability; None: they can."""
    if capability >= _LEAST_CAPABILITY:
        return None
    has, needs = (".".join(map(str, version)) for version in (capability, _LEAST_CAPABILITY))
    return f"the device has compute capability {has}: {needs} is needed"


def _load_cuda(
    config: EngineConfig, checkpoint: Path, *, weights: WeightOrigin, on_progress: OnProgress
) -> LoadedModel | None:
    """Loads a model that the kernels for CUDA compute; None where they can't."""
    from antiphon_engine.cuda.supported_models import supports

    fields = Fields.read(checkpoint / "config.json")
    model = parse_model_config(fields)
    dtype = model_dtype(config, model)
    asked = asked_quantization(config, ON_CUDA, where="engine.device = cuda")
    kv_dtype = kv_cache_dtype(config, dtype)
    is_narrow, is_cache_narrow = asked is Quantization.FP8, kv_dtype is NARROW
    lacking = lacking_capability(torch.cuda.get_device_capability()) or supports(
        model, dtype, narrow_weights=is_narrow, narrow_cache=is_cache_narrow
    )
    if lacking is not None and is_narrow:
        raise StartupError(f"engine.quantization = {asked} can't be served here: {lacking}")
    if lacking is not None and is_cache_narrow:
        raise StartupError(
            f"engine.kv_cache_dtype = {config.kv_cache_dtype} can't be served here: {lacking}"
        )
    if lacking is not None:
        _log.warning("PyTorch's operators compute the model: much slower", reason=lacking)
        return None
    # Only here: it imports Triton, which installations for the CPU don't have.
    from antiphon_engine.cuda.loading import CudaLoad, load_cuda

    wanted = CudaLoad(
        config=config,
        checkpoint=checkpoint,
        model=model,
        dtype=dtype,
        kv_dtype=kv_dtype,
        quantization=asked,
        weights=weights,
        has_stored=parse_float8(fields) is not None,
    )
    return load_cuda(wanted, on_progress)
