"""Loads a checkpoint into an executor, for the engine process and for those that measure."""

from pathlib import Path

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.process import EngineStart
from antiphon_engine.engine_process import LoadedModel, ModelFacts, OnProgress
from antiphon_engine.executor import Executor, WeightOrigin


def load(start: EngineStart, on_progress: OnProgress) -> LoadedModel:
    """Loads the checkpoint that `start` names. Raises StartupError."""
    cache_dir = start.surroundings.cache_dir
    executor = Executor(
        start.config,
        Path(start.checkpoint),
        weights=WeightOrigin(cache_dir=Path(cache_dir) if cache_dir else None),
        on_progress=on_progress,
    )
    return describe(executor)


def load_offline(config: EngineConfig, checkpoint: Path, *, random_seed: int | None) -> LoadedModel:
    """Loads a checkpoint, or gives its shape random weights, for whoever drives an engine itself.

    Raises StartupError.
    """
    return describe(Executor(config, checkpoint, weights=WeightOrigin(random_seed=random_seed)))


def describe(executor: Executor) -> LoadedModel:
    """Returns an executor with what it knows of its model."""
    model, memory = executor.model_config, executor.memory
    return LoadedModel(
        executor=executor,
        device=executor.device,
        facts=ModelFacts(
            architecture=model.architecture,
            dtype=executor.dtype_name,
            quantization=executor.quantization,
            vocabulary_size=model.vocabulary_size,
            context_tokens=memory.context_tokens,
            num_blocks=memory.num_blocks,
            num_host_blocks=memory.num_host_blocks,
        ),
    )
