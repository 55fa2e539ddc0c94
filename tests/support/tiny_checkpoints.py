"""Tiny random checkpoints of each family, made by the transformers library from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY_SIZE = 1024
CONTEXT_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """What to make. Two layers, four query heads on two key-value heads, float32 unless told."""

    family: str = "qwen2"
    tied: bool = False
    rope: Mapping[str, object] | None = None
    attention_bias: bool = False
    head_dim: int = 16
    context_tokens: int = CONTEXT_TOKENS
    vocabulary_size: int = VOCABULARY_SIZE
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    seed: int = 7
    extra: Mapping[str, object] = field(default_factory=dict)


FAMILIES = ("llama", "qwen2", "qwen3")


def make_checkpoint(directory: Path, model: TinyModel = TinyModel()) -> Path:
    """Writes the checkpoint into a directory, which is made, and returns it."""
    torch.manual_seed(model.seed)
    made = AutoModelForCausalLM.from_config(_config(model), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            # Large enough that logits differ clearly and greedy choices don't hang on rounding.
            spread = 0.3 if parameter.ndim > 1 else 0.1
            parameter.normal_(mean=1.0 if "norm" in name else 0.0, std=spread)
    made.tie_weights()
    made.to(model.dtype).save_pretrained(directory, max_shard_size=model.max_shard_size)
    return directory


def load_reference(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Loads a checkpoint with the transformers library."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    return model.eval()


def prompts(
    count: int, *, least: int, most: int, vocabulary_size: int = VOCABULARY_SIZE, seed: int = 3
) -> list[list[int]]:
    """Returns random prompts of `least` to `most` tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, most + 1, (count,), generator=generator).tolist()
    return [
        torch.randint(3, vocabulary_size, (length,), generator=generator).tolist()
        for length in lengths
    ]


def _config(model: TinyModel) -> PretrainedConfig:
    shared: dict[str, object] = {
        "vocab_size": model.vocabulary_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.context_tokens,
        "tie_word_embeddings": model.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **({"rope_parameters": dict(model.rope)} if model.rope else {}),
        **model.extra,
    }
    if model.family == "qwen2":
        return Qwen2Config(**shared)
    classes = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    return classes[model.family](attention_bias=model.attention_bias, **shared)
