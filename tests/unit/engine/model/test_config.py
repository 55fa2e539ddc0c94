import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model.rope_config import RopeKind

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def compressed(weights=None, **members):
    """Returns what compressed-tensors adds to a configuration."""
    weights = {"type": "float", "num_bits": 8, "strategy": "channel", **(weights or {})}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups, **members}
    return {"quantization_config": config}


def parse(**members):
    return parse_model_config(Fields({**CONFIG, **members}, "config.json"))


def test_unsupported_architecture_is_told_with_the_supported_ones():
    with pytest.raises(StartupError, match=r"FooForCausalLM.*LlamaForCausalLM, Qwen2.*, Qwen3"):
        parse(architectures=["FooForCausalLM"])


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq.*supported are fp8"),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "e5m2"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}},
            r"weight_block_size is \[64, 128\]",
        ),
        (compressed(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        (compressed({"type": "int"}), "int of 8 bits"),
        (compressed({"num_bits": 4}), "float of 4 bits"),
        (compressed({"strategy": "group"}), "strategy of its weights is group"),
        (compressed({"symmetric": False}), "symmetric"),
        (compressed({"strategy": "block", "block_structure": [1, 32]}), r"is \[1, 32\]"),
        (compressed(config_groups={}), "0 config_groups"),
        ({"hidden_act": "gelu"}, "gelu"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "sliding-window",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 29},
            "sliding-window",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "full attention"),
        ({"head_dim": 33}, "33 values.*head_dim is odd"),
        ({"hidden_size": 12}, "3 values.*head_dim is odd"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06, but must be from 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"dtype": "float8_e4m3fn"}, "float8"),
        ({"num_attention_heads": 5}, "5 attention heads"),
        ({"vocab_size": "100"}, "vocab_size"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "spiral.*supported.*yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, "factor is '4'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "at least 1"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "lacks low_freq_factor"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(members, named):
    with pytest.raises(StartupError, match=named):
        parse(**members)


@pytest.mark.parametrize(
    ("members", "kind", "context_tokens"),
    [
        ({}, RopeKind.DEFAULT, 64),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, RopeKind.LINEAR, 256),
        # Angles that depend on the text's length allow no reuse: served unstretched.
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, RopeKind.DYNAMIC, 64),
        ({"rope_scaling": LLAMA3}, RopeKind.LLAMA3, 64),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            RopeKind.YARN,
            256,
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "rope_theta": 5.0,
                }
            },
            RopeKind.YARN,
            128,
        ),
    ],
)
def test_scaling_is_found_under_each_of_its_names(members, kind, context_tokens):
    config = parse(**members)

    assert config.rope.kind is kind
    assert config.context_tokens == context_tokens


def test_rope_theta_inside_the_scaling_wins():
    inside = {"rope_type": "default", "rope_theta": 5.0}

    assert parse(rope_theta=7.0).rope.theta == 7.0
    assert parse(rope_theta=7.0, rope_parameters=inside).rope.theta == 5.0


def test_original_length_outside_the_scaling_wins():
    config = parse(rope_scaling=LLAMA3, original_max_position_embeddings=8)

    assert config.rope.original_context_tokens == 8


def test_families_differ_where_their_configurations_are_silent():
    qwen2 = parse(architectures=["Qwen2ForCausalLM"])
    qwen3 = parse(architectures=["Qwen3ForCausalLM"])

    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (False, False, True)
    assert (qwen2.head_dim, qwen3.head_dim) == (16, 128)
