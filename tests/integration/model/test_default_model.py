"""The default model with its real weights against the reference."""

import pytest
import tokenizers
import torch

from antiphon_engine.api.checkpoint import inspect_checkpoint
from antiphon_engine.api.config import EngineConfig
from antiphon_server.text.chat_template import ChatTemplate, TemplateInput
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
def prompts(kept):
    # The transformers library takes three times as long to read as many tokens.
    tokenizer = tokenizers.Tokenizer.from_file(str(kept / "tokenizer.json"))
    template = ChatTemplate.load(kept)
    asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
    texts = [template.render(TemplateInput(messages=said, named_tokens={})) for said in asked]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def logits_behind(model, prompts, outputs):
    """The reference's logits [tokens of the output, V] before each token of the outputs.

    All rows are computed at once: what fills up the shorter ones stands behind them.
    """
    rows = [prompt + output[:-1] for prompt, output in zip(prompts, outputs, strict=True)]
    length, first = max(map(len, rows)), min(map(len, prompts)) - 1
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    logits = model(tokens, logits_to_keep=torch.arange(first, length)).logits
    return [
        kept[len(prompt) - 1 - first :][: len(output)]
        for kept, prompt, output in zip(logits, prompts, outputs, strict=True)
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
    written = {name: [(*output,) for output in all_] for name, all_ in outputs.items()}
    # Engines write the same to most prompts.
    distinct = sorted({pair for all_ in written.values() for pair in enumerate(all_)})
    logits = logits_behind(
        load_reference(checkpoint),
        [prompts[index] for index, _ in distinct],
        [[*output] for _, output in distinct],
    )
    best = {pair: behind.argmax(-1).tolist() for pair, behind in zip(distinct, logits, strict=True)}
    return {name: [best[pair] for pair in enumerate(all_)] for name, all_ in written.items()}


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
        logits = logits_behind(model, prompts, [[0]] * len(prompts))
        expected = [behind[-1].float() for behind in logits]
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
