"""The default model with its real weights against the reference."""

import pytest
import torch
from transformers import AutoTokenizer

from antiphon_engine.api.checkpoint import inspect_checkpoint
from antiphon_engine.api.config import EngineConfig
from support.default_model import FIRST_USE_LIMIT_S, default_checkpoint, expanded_checkpoint
from support.greedy_engine import GreedyEngine
from support.tiny_checkpoints import load_reference

pytestmark = [pytest.mark.default_model, pytest.mark.timeout(FIRST_USE_LIMIT_S)]

NUM_OUTPUT_TOKENS = 32
QUESTIONS = (
    "What is the capital of France?",
    "What is 2 + 2?",
    "Write a Python function that reverses a linked list.",
    "Name three colours.",
    "Translate 'good morning' into German and French.",
    "Explain in one sentence why the sky is blue.",
    "List the first five prime numbers, separated by commas.",
    "Is a tomato a fruit or a vegetable? Answer briefly.",
)


@pytest.fixture(scope="module")
def kept():
    """The model as it is served: in the blocks of its GGUF file."""
    return default_checkpoint()


@pytest.fixture(scope="module")
def checkpoint(kept, tmp_path_factory):
    """The same weights in bfloat16, as the reference reads them."""
    return expanded_checkpoint(kept, tmp_path_factory.mktemp("expanded"))


@pytest.fixture(scope="module")
def prompts(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for question in QUESTIONS
    ]


@torch.inference_mode()
def likeliest_by_reference(checkpoint, prompts, outputs):
    """Returns the reference's likeliest token at each place of the outputs.

    Where these are the outputs themselves, the reference would have written the same by itself.
    """
    model = load_reference(checkpoint)
    likeliest = []
    for prompt, output in zip(prompts, outputs, strict=True):
        before = torch.tensor([prompt + output[:-1]])
        logits = model(before, logits_to_keep=len(output)).logits[0]
        likeliest.append(logits.argmax(-1).tolist())
    return likeliest


def test_it_says_of_itself_what_it_is(kept):
    info = inspect_checkpoint(kept)

    assert info.architecture == "Qwen2ForCausalLM"
    assert info.context_tokens == 32_768
    assert info.end_ids == {151_643, 151_645}
    assert info.dtype == "bfloat16"


def test_greedy_output_in_float32_equals_the_reference(checkpoint, prompts):
    config = EngineConfig(
        dtype="float32", num_threads=1, kv_cache_tokens=4096, max_context_tokens=1024
    )

    outputs = GreedyEngine(checkpoint, config).generate(prompts, NUM_OUTPUT_TOKENS)

    assert [len(output) for output in outputs] == [NUM_OUTPUT_TOKENS] * len(prompts)
    assert outputs == likeliest_by_reference(checkpoint, prompts, outputs)


def test_logits_in_bfloat16_stay_near_the_reference(checkpoint, prompts):
    with torch.inference_mode():
        model = load_reference(checkpoint, torch.bfloat16)
        expected = [model(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts]
    del model
    config = EngineConfig(
        dtype="bfloat16",
        num_threads=1,
        kv_cache_tokens=4096,
        max_context_tokens=1024,
        chunk_tokens=32,
    )
    engine = GreedyEngine(checkpoint, config)

    engine.generate(prompts, 1)

    # Logits reach 20 here, where neighbouring numbers of eight bits are 0.125 apart, and
    # chunks are rounded in another order.
    for index, reference in enumerate(expected):
        difference = (engine.first_logits[index] - reference).abs()
        assert difference.max() <= 0.5
        assert difference.mean() <= 0.1


def test_quantized_weights_choose_what_the_wide_ones_choose(kept, checkpoint, prompts):
    kinds = ("auto", "int8")
    outputs = {}
    for quantization in kinds:
        config = EngineConfig(
            num_threads=1, kv_cache_tokens=4096, max_context_tokens=1024, quantization=quantization
        )
        outputs[quantization] = GreedyEngine(kept, config).generate(prompts, NUM_OUTPUT_TOKENS)

    all_outputs = [output for kind in kinds for output in outputs[kind]]
    expected = likeliest_by_reference(checkpoint, prompts * len(kinds), all_outputs)

    for kind, best in zip(kinds, (expected[: len(prompts)], expected[len(prompts) :]), strict=True):
        pairs = [
            pair
            for output, likeliest in zip(outputs[kind], best, strict=True)
            for pair in zip(output, likeliest, strict=True)
        ]
        equal = sum(token == likeliest for token, likeliest in pairs) / len(pairs)
        assert equal >= 0.96, kind
