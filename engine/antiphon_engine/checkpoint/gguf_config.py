"""The configuration of a GGUF file's model, as transformers has it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from transformers import (
    AutoConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from antiphon_engine.checkpoint.gguf_file import GgufFile, Scalar

ARCHITECTURES: Final = MappingProxyType({"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"})
"""Those that are converted, and what transformers calls them."""

_TOKENIZERS: Final[Mapping[str, type[PreTrainedTokenizerBase]]] = MappingProxyType(
    {"llama": PreTrainedTokenizerFast, "qwen2": Qwen2Tokenizer}
)
_OF_THE_MODEL: Final = MappingProxyType(
    {
        "context_length": "max_position_embeddings",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "embedding_length": "hidden_size",
        "rope.freq_base": "rope_theta",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "vocab_size": "vocab_size",
    }
)
_OF_THE_TOKENIZER: Final = MappingProxyType(
    {
        "bos_token_id": "bos_token_id",
        "eos_token_id": "eos_token_id",
        "padding_token_id": "pad_token_id",
    }
)


def config_of(file: GgufFile, architecture: str) -> PretrainedConfig:
    """Returns the configuration that the file's facts say; transformers' defaults for others."""
    found: dict[str, Scalar] = {}
    for key, name in _OF_THE_MODEL.items():
        if (value := file.facts.get(f"{architecture}.{key}")) is not None:
            found[name] = value
    for key, name in _OF_THE_TOKENIZER.items():
        if (value := file.facts.get(f"tokenizer.ggml.{key}")) is not None:
            found[name] = value
    if architecture == "llama" and f"{architecture}.rope.dimension_count" in file.facts:
        # Its heads are turned as a whole.
        found["head_dim"] = file.facts[f"{architecture}.rope.dimension_count"]
    found.setdefault("vocab_size", file.lengths.get("tokenizer.ggml.tokens", 0))
    return AutoConfig.for_model(architecture, **found)


def tokenizer_class(architecture: str) -> type[PreTrainedTokenizerBase]:
    """Returns the class that reads the file's tokenizer.

    transformers finds it as well, but reads the whole vocabulary slowly once more for that.
    """
    return _TOKENIZERS[architecture]
