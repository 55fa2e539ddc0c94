"""The configuration of a GGUF file's model, as transformers has it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from antiphon_engine.api.errors import StartupError
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


_NEEDED: Final = (
    "context_length",
    "block_count",
    "feed_forward_length",
    "embedding_length",
    "attention.head_count",
)
_ASSUMED: Final = ("attention.head_count_kv", "vocab_size")
"""Sizes too, which follow from others where they are absent."""
_EPSILON: Final = "attention.layer_norm_rms_epsilon"
_SCALING: Final = "rope.scaling.type"
_WINDOW: Final = "attention.sliding_window"


def config_of(file: GgufFile, architecture: str) -> PretrainedConfig:
    """Returns the configuration that the file's facts say; transformers' defaults for others.

    Raises:
        StartupError: a fact that decides what is computed is absent, out of range or not supported.
    """
    _check(file, architecture)
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
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    try:
        return AutoConfig.for_model(architecture, **found)
    except StrictDataclassError as error:
        # Its first line says only which of the library's checks failed.
        reason = str(error).splitlines()[-1].strip()
        raise StartupError(f"the file's facts make no configuration: {reason}") from error


def _check(file: GgufFile, architecture: str) -> None:
    for key in (*_NEEDED, *_ASSUMED):
        name = f"{architecture}.{key}"
        if name in file.lengths:
            raise StartupError(f"the file's {name} is a list: layers that differ aren't supported")
        value = file.facts.get(name)
        if value is None and key in _ASSUMED:
            continue
        if type(value) is not int or value < 1:
            raise _unfit(name, value, "a whole number of at least 1")
    name = f"{architecture}.block_count"
    num_layers, num_tensors = file.facts[name], len(file.tensors)
    if isinstance(num_layers, int) and num_layers > num_tensors:
        raise _unfit(name, num_layers, f"less than its {num_tensors} tensors")
    epsilon = file.facts.get(f"{architecture}.{_EPSILON}")
    if type(epsilon) is not float or not 0 <= epsilon < 1:
        raise _unfit(f"{architecture}.{_EPSILON}", epsilon, "a number from 0 to less than 1")
    for key, plain in ((_SCALING, "none"), (_WINDOW, 0)):
        name = f"{architecture}.{key}"
        if name in file.lengths or file.facts.get(name, plain) != plain:
            value = file.facts.get(name, "a list")
            raise StartupError(f"the file's {name} is {value!r:.100}: not supported")


def _unfit(name: str, value: Scalar | None, wanted: str) -> StartupError:
    if value is None:
        return StartupError(f"the file lacks {name}, which must be {wanted}")
    return StartupError(f"the file's {name} is {value!r:.100}, but must be {wanted}")


def tokenizer_class(architecture: str) -> type[PreTrainedTokenizerBase]:
    """Returns the class that reads the file's tokenizer.

    transformers finds it as well, but reads the whole vocabulary slowly once more for that.
    """
    return _TOKENIZERS[architecture]
