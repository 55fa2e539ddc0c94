"""Getting a model's checkpoint, and what its files say of it. No torch, no weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import find_shards
from antiphon_engine.checkpoint.sources import Sources, default_sources, find_model
from antiphon_engine.model.config import parse_model_config


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint's own statements about itself."""

    architecture: str
    vocabulary_size: int
    """Rows of the output matrix; may exceed the tokenizer's."""
    context_tokens: int
    end_ids: frozenset[int]
    """The union of config.json's and generation_config.json's."""
    sampling_defaults: Mapping[str, float]
    """temperature (0: greedy), top_k, top_p, min_p and repetition_penalty, where given."""
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    model_bytes: int
    """Of its weight files."""


def resolve_model(
    model: str, *, cache_dir: Path, progress: OnProgress, sources: Sources | None = None
) -> Path:
    """Returns a directory with config.json, tokenizer and safetensors. May take minutes; blocks.

    Args:
        model: A directory, a .gguf file, a hub id or "demo".
        cache_dir: Where converted models are kept; made if absent.
        progress: Is told stage, done and total, on this thread.
        sources: Where models come from; None: the real ones.

    Raises:
        StartupError: there is no such model, or it can't be fetched or converted.
    """
    return find_model(model, sources or default_sources(), cache_dir=cache_dir, progress=progress)


def inspect_checkpoint(directory: Path) -> CheckpointInfo:
    """Reads configuration and file headers, and finds what would keep the engine from loading them.

    Raises:
        StartupError: a file is missing or broken, or the model is of an unsupported kind.
    """
    config = Fields.read(directory / "config.json")
    generation_path = directory / "generation_config.json"
    generation = (
        Fields.read(generation_path)
        if generation_path.exists()
        else Fields({}, generation_path.name)
    )
    model = parse_model_config(config)
    return CheckpointInfo(
        architecture=model.architecture,
        vocabulary_size=model.vocabulary_size,
        context_tokens=model.context_tokens,
        end_ids=config.token_ids("eos_token_id") | generation.token_ids("eos_token_id"),
        sampling_defaults=_sampling_defaults(generation),
        dtype=model.dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        model_bytes=find_shards(directory).size_bytes,
    )


def _sampling_defaults(generation: Fields) -> dict[str, float]:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    defaults = {name: generation.number(name) for name in names if name in generation}
    if "do_sample" in generation and not generation.boolean("do_sample", False):
        defaults["temperature"] = 0.0
    return defaults
