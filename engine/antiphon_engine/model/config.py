"""What a model is made of, read from a checkpoint's config.json. Imports no torch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.float8 import parse_float8
from antiphon_engine.model.rope_config import (
    RopeConfig,
    parse_rope_config,
    stretched_context_tokens,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only transformer."""

    architecture: str
    vocabulary_size: int
    """Rows of the embedding and the output matrix."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope: RopeConfig
    context_tokens: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Whether queries and keys are normalised, head by head, before they are rotated."""
    dtype: str
    """Element type of the checkpoint's weights: float32, float16 or bfloat16."""

    def num_parameters(self) -> int:
        """Returns how many weights the model has, a tied matrix counted once."""
        q_size = self.num_heads * self.head_dim
        kv_size = self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * q_size + 2 * kv_size)
        attention += (q_size + 2 * kv_size) * self.qkv_bias + self.hidden_size * self.output_bias
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        matrices = 1 if self.tied_embeddings else 2
        return (
            self.num_layers * (attention + mlp + norms)
            + self.hidden_size
            + matrices * self.vocabulary_size * self.hidden_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What tells the families apart and their configurations leave unsaid."""

    qkv_bias: bool | None = None
    """None: as attention_bias says."""
    output_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None
    """None: hidden size by heads."""


_FAMILIES: Final[Mapping[str, _Family]] = MappingProxyType(
    {
        "LlamaForCausalLM": _Family(),
        "Qwen2ForCausalLM": _Family(qkv_bias=True, output_bias=False),
        "Qwen3ForCausalLM": _Family(qk_norm=True, head_dim=128),
    }
)

_WINDOW_LAYERS: Final = 28
"""The first layer with a sliding window, where a configuration doesn't say: as transformers has it.
"""

SUPPORTED_ARCHITECTURES: Final[tuple[str, ...]] = tuple(_FAMILIES)


def parse_model_config(
    config: Fields, *, supported: Collection[str] = SUPPORTED_ARCHITECTURES
) -> ModelConfig:
    """Reads the shape, and refuses by name what would be computed wrongly.

    Raises:
        StartupError: a field is absent or wrong, or the architecture or a feature unsupported.
    """
    architecture = _architecture(config, supported)
    family = _FAMILIES.get(architecture, _Family())
    _refuse_unsupported_features(config)
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise StartupError(
            f"{num_heads} attention heads can't share {num_kv_heads} key-value heads evenly"
        )
    bias = config.boolean("attention_bias", False)
    head_dim = config.integer("head_dim", family.head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise StartupError(f"heads of {head_dim} values have no pairs to rotate: head_dim is odd")
    rope = parse_rope_config(config)
    return ModelConfig(
        architecture=architecture,
        vocabulary_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_epsilon=_norm_epsilon(config),
        rope=rope,
        context_tokens=stretched_context_tokens(rope, config.integer("max_position_embeddings")),
        tied_embeddings=config.boolean("tie_word_embeddings", False),
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias if family.output_bias is None else family.output_bias,
        mlp_bias=config.boolean("mlp_bias", False),
        qk_norm=family.qk_norm,
        dtype=_dtype(config),
    )


def _architecture(config: Fields, supported: Collection[str]) -> str:
    names = config.texts("architectures")
    for name in names:
        if name in supported:
            return name
    found = ", ".join(names) or "none"
    raise StartupError(
        f"the checkpoint's architecture ({found}) is not supported; supported: "
        + ", ".join(sorted(supported))
    )


def _refuse_unsupported_features(config: Fields) -> None:
    parse_float8(config)
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise StartupError(f"the checkpoint's activation is {activation!r}: only silu is supported")
    num_layers = config.integer("num_hidden_layers")
    windowed = config.boolean("use_sliding_window", False) and "sliding_window" in config
    if windowed and config.number("max_window_layers", _WINDOW_LAYERS) < num_layers:
        raise StartupError("the checkpoint uses sliding-window attention: not supported yet")
    if set(config.texts("layer_types")) - {"full_attention"}:
        raise StartupError("the checkpoint has layers without full attention: not supported yet")


def _norm_epsilon(config: Fields) -> float:
    epsilon = config.number("rms_norm_eps", 1e-6)
    if not 0 <= epsilon < 1:
        raise StartupError(
            f"the checkpoint's rms_norm_eps is {epsilon:g}, but must be from 0 to less than 1"
        )
    return epsilon


def _dtype(config: Fields) -> str:
    dtype = config.text("dtype", config.text("torch_dtype", "float32"))
    if dtype not in ("float32", "float16", "bfloat16"):
        raise StartupError(f"the checkpoint's weights are of type {dtype!r}: not supported")
    return dtype
