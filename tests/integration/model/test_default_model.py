"""The default model with its real weights against the reference."""

from functools import cache

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
ROOM = {"num_threads": 1, "kv_cache_tokens": 4096, "max_context_tokens": 1024}
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


@pytest.fixture(scope="module")
def outputs(kept, checkpoint, prompts):
    """What is written to the prompts: in float32, and with weights in two small forms."""
    engines = {
        "float32": (checkpoint, EngineConfig(dtype="float32", **ROOM)),
        "auto": (kept, EngineConfig(quantization="auto", **ROOM)),
        "int8": (kept, EngineConfig(quantization="int8", **ROOM)),
    }
    return {
        name: GreedyEngine(source, config).generate(prompts, NUM_OUTPUT_TOKENS)
        for name, (source, config) in engines.items()
    }


@pytest.fixture(scope="module")
@torch.inference_mode()
def likeliest(checkpoint, prompts, outputs):
    """The reference's likeliest token at each place of the outputs.

    Where these are the outputs themselves, the reference would have written the same by itself.
    """
    model = load_reference(checkpoint)

    @cache  # Engines write the same to most prompts.
    def behind(prompt, output):
        before = torch.tensor([prompt + output[:-1]])
        logits = model(before, logits_to_keep=len(output)).logits[0]
        return logits.argmax(-1).tolist()

    return {
        name: [behind((*prompt,), (*output,)) for prompt, output in zip(prompts, all_, strict=True)]
        for name, all_ in outputs.items()
    }


def test_it_says_of_itself_what_it_is(kept):
    info = inspect_checkpoint(kept)

    assert info.architecture == "Qwen2ForCausalLM"
    assert info.context_tokens == 32_768
    assert info.end_ids == {151_643, 151_645}
    assert info.dtype == "bfloat16"


def test_greedy_output_in_float32_equals_the_reference(prompts, outputs, likeliest):
    written = outputs["float32"]

    assert [len(output) for output in written] == [NUM_OUTPUT_TOKENS] * len(prompts)
    assert written == likeliest["float32"]


def test_logits_in_bfloat16_stay_near_the_reference(checkpoint, prompts):
    with torch.inference_mode():
        model = load_reference(checkpoint, torch.bfloat16)
        expected = [model(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts]
    del model
    engine = GreedyEngine(checkpoint, EngineConfig(dtype="bfloat16", chunk_tokens=32, **ROOM))

    engine.generate(prompts, 1)

    # Logits reach 20 here, where neighbouring numbers of eight bits are 0.125 apart, and
    # chunks are rounded in another order.
    for index, reference in enumerate(expected):
        difference = (engine.first_logits[index] - reference).abs()
        assert difference.max() <= 0.5
        assert difference.mean() <= 0.1


@pytest.mark.parametrize("form", ["auto", "int8"])
def test_quantized_weights_choose_what_the_wide_ones_choose(form, outputs, likeliest):
    pairs = [
        pair
        for output, best in zip(outputs[form], likeliest[form], strict=True)
        for pair in zip(output, best, strict=True)
    ]

    equal = sum(token == best for token, best in pairs) / len(pairs)
    assert equal >= 0.96
