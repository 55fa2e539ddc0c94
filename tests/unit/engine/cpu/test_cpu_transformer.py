"""The model by the CPU's own kernels, beside the same model by PyTorch's operators."""

import numpy as np
import pytest
import torch

from antiphon_engine import _kernels
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.greedy_engine import GreedyEngine
from support.tiny_checkpoints import FAMILIES, TinyModel, make_checkpoint, prompts
from support.whole_prompt import prompt_logits

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
ISAS = [
    isa for isa in ("portable", "avx2", "avx512", "avx512_bf16", "amx") if _kernels.has_isa(isa)
]
# These take rows as integers, with weights that are.
BYTE_ISAS = [isa for isa in ("avx_vnni", "avx512_vnni") if _kernels.has_isa(isa)]
(PROMPT,) = prompts(1, least=70, most=70)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("families")
    return {
        family: make_checkpoint(
            directory / family, TinyModel(family=family, tied=family == "qwen2")
        )
        for family in FAMILIES
    }


def engine_config(**settings):
    defaults = {
        "dtype": "float32",
        "cpu_kernels": "auto",
        "num_threads": 2,
        "block_tokens": 8,
        "max_rows": 4,
        "max_step_tokens": 64,
        "kv_cache_tokens": 1024,
    }
    return EngineConfig(**(defaults | settings))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_pytorchs_operators_on_every_instruction_set(checkpoints, family):
    expected = prompt_logits(checkpoints[family], PROMPT, FLOAT32)

    for isa in ISAS:
        logits = prompt_logits(checkpoints[family], PROMPT, FLOAT32, cpu_kernels=isa)
        assert (logits - expected).abs().max() < 1e-4, isa


def test_biases_are_added_everywhere(tmp_path):
    model = TinyModel(family="llama", attention_bias=True, extra={"mlp_bias": True})
    checkpoint = make_checkpoint(tmp_path, model)
    expected = prompt_logits(checkpoint, PROMPT, FLOAT32)

    logits = prompt_logits(checkpoint, PROMPT, FLOAT32, cpu_kernels="auto")

    assert (logits - expected).abs().max() < 1e-4


# Logits reach 10 here. The bounds are about twice what was seen.
@pytest.mark.parametrize(
    ("quantization", "mean_difference"), [("none", 0.1), ("int8", 0.25), ("int4", 2.0)]
)
def test_narrow_weights_stay_near_the_wide_ones(checkpoints, quantization, mean_difference):
    expected = prompt_logits(checkpoints["qwen2"], PROMPT, FLOAT32)

    for isa in [*ISAS, *BYTE_ISAS]:
        logits = prompt_logits(
            checkpoints["qwen2"], PROMPT, BFLOAT16, cpu_kernels=isa, quantization=quantization
        )
        assert (logits - expected).abs().mean() < mean_difference, isa


def test_quantized_weights_with_float32_rows_are_what_the_matrix_says(checkpoints):
    by_isa = [
        prompt_logits(checkpoints["llama"], PROMPT, FLOAT32, cpu_kernels=isa, quantization="int8")
        for isa in ISAS
    ]

    # The same integers and scales everywhere: only sums are rounded in another order.
    for logits in by_isa[1:]:
        assert (logits - by_isa[0]).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_logits_do_not_depend_on_chunks_threads_or_mates(checkpoints, dtype):
    several = prompts(4, least=30, most=60)
    engine = GreedyEngine(checkpoints["qwen3"], engine_config(dtype=dtype))
    together_outputs = engine.generate(several, 4)
    together = dict(engine.first_logits)

    for settings in ({"max_rows": 1, "chunk_tokens": 8}, {"num_threads": 1, "chunk_tokens": 16}):
        alone = GreedyEngine(checkpoints["qwen3"], engine_config(dtype=dtype, **settings))
        assert alone.generate(several, 4) == together_outputs
        for index, logits in together.items():
            assert torch.equal(alone.first_logits[index], logits)


@pytest.mark.parametrize(
    ("settings", "kernels"),
    [
        (
            {"cpu_kernels": "portable", "dtype": "bfloat16", "quantization": "int8"},
            {"attention": "portable", "products.int8": "portable"},
        ),
        ({"cpu_kernels": "torch"}, {"attention": "torch", "products.float32": "torch"}),
    ],
    ids=str,
)
def test_model_says_what_computes_it(checkpoints, settings, kernels):
    model = describe(Executor(engine_config(**settings), checkpoints["llama"]))

    assert model.facts.kernels == kernels


def test_step_is_one_call_for_all_layers_and_one_for_the_logits(checkpoints):
    engine = GreedyEngine(checkpoints["llama"], engine_config())
    engine.generate([PROMPT], 1)
    before = engine.executor._model.num_calls

    engine.generate([PROMPT[:5]], 10)

    assert engine.executor._model.num_calls - before == 2 * engine.num_steps


def test_likeliest_tokens_are_those_of_the_logits_whatever_is_scored_behind(checkpoints):
    model = GreedyEngine(checkpoints["llama"], engine_config()).executor._model
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    all_rows = torch.arange(3)
    expected = model.logits(hidden, all_rows).argmax(-1)

    likeliest = model.likeliest(3)
    model.logits(-hidden, all_rows)

    assert likeliest.dtype is torch.int32
    assert likeliest.tolist() == expected.tolist()
    assert model.likeliest(3).tolist() != expected.tolist()


def test_hidden_states_and_logits_lie_where_they_always_lie(checkpoints):
    engine = GreedyEngine(checkpoints["llama"], engine_config())
    model = engine.executor._model
    engine.generate([PROMPT], 3)
    places = [model._layers.hidden.ctypes.data, model._logits.logits.ctypes.data]

    hidden = torch.zeros(2, 64)
    logits = [model.logits(hidden, torch.arange(2)).data_ptr() for _ in range(2)]

    assert logits == [places[1]] * 2
    assert np.shares_memory(model._layers.hidden, model._layers.program.buffer(0))
