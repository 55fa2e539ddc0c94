"""A checkpoint whose weights nobody reads: configuration, tokenizer and one small tensor."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from support.tiny_tokenizers import CHAT_TEMPLATE, save_byte_level_tokenizer


def save_hollow_checkpoint(
    directory: Path,
    *,
    vocabulary_size: int = 1024,
    context_tokens: int = 8192,
    chat_template: str = CHAT_TEMPLATE,
) -> Path:
    """Writes what a front end looks at, for an engine that computes nothing; returns it."""
    save_byte_level_tokenizer(directory, chat_template=chat_template)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocabulary_size,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "hidden_act": "silu",
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": np.ones(8, np.float32)}, directory / "model.safetensors")
    return directory
