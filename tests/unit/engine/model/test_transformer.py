import pytest
import torch

from antiphon_engine.api.checkpoint import inspect_checkpoint
from support.tiny_checkpoints import (
    FAMILIES,
    TinyModel,
    load_reference,
    make_checkpoint,
    prompts,
)
from support.whole_prompt import prompt_logits

TOLERANCE = 1e-4

ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10_000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 10_000.0,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 10_000.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
}


def difference(checkpoint, prompt, dtype=torch.float32) -> float:
    with torch.inference_mode():
        expected = load_reference(checkpoint, dtype)(torch.tensor([prompt])).logits[0].float()
    return (prompt_logits(checkpoint, prompt, dtype) - expected).abs().max().item()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_reference(tmp_path, family, tied):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family=family, tied=tied))
    (prompt,) = prompts(1, least=70, most=70)

    assert difference(checkpoint, prompt) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_biases_on_all_projections_are_added(tmp_path, family):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family=family, attention_bias=True))
    (prompt,) = prompts(1, least=40, most=40)

    assert difference(checkpoint, prompt) < TOLERANCE


def test_biases_of_the_feed_forward_layer_are_added(tmp_path):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family="llama", extra={"mlp_bias": True}))
    (prompt,) = prompts(1, least=40, most=40)

    assert difference(checkpoint, prompt) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_head_size_may_differ_from_hidden_size_by_heads(tmp_path, family):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family=family, head_dim=24))
    (prompt,) = prompts(1, least=40, most=40)

    assert difference(checkpoint, prompt) < TOLERANCE


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_stretched_positions_equal_the_reference_up_to_the_longest_context(tmp_path, rope):
    model = TinyModel(family="llama", rope=rope, context_tokens=128)
    checkpoint = make_checkpoint(tmp_path, model)
    longest = inspect_checkpoint(checkpoint).context_tokens

    for length in (16, longest * 9 // 10):
        (prompt,) = prompts(1, least=length, most=length)
        assert difference(checkpoint, prompt) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_near_the_reference(tmp_path, family):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family=family, dtype=torch.bfloat16))
    (prompt,) = prompts(1, least=70, most=70)

    # Logits spread over about ±8 here; bfloat16 has 8 bits.
    assert difference(checkpoint, prompt, torch.bfloat16) < 0.15


def test_half_precision_weights_are_widened_without_loss(tmp_path):
    checkpoint = make_checkpoint(tmp_path, TinyModel(dtype=torch.float16))
    (prompt,) = prompts(1, least=40, most=40)

    assert difference(checkpoint, prompt) < TOLERANCE
