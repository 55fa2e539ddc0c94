"""The executor under plans made by hand."""

import numpy as np
import pytest
import torch

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.executor import Executor
from antiphon_engine.model.base import ModelRegistry
from antiphon_engine.model.registry import default_registry
from support.tiny_checkpoints import VOCABULARY_SIZE, TinyModel, make_checkpoint, prompts

BLOCK_TOKENS = 8
CONFIG = EngineConfig(
    num_threads=1, block_tokens=BLOCK_TOKENS, max_rows=4, max_step_tokens=64, kv_cache_tokens=256
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("qwen2"), TinyModel())


@pytest.fixture
def executor(checkpoint):
    return Executor(CONFIG, checkpoint)


def write_row(executor, token_ids, *, slot=0, context=0, blocks=(), gather=False):
    """Plans one row that computes `token_ids` and samples the last."""
    step = executor.buffers(0)
    size = len(token_ids)
    positions = np.arange(context, context + size)
    step["header"][:] = 0
    step["header"][_native.HEADER_NUM_ROWS] = 1
    step["header"][_native.HEADER_NUM_TOKENS] = size
    step["header"][_native.HEADER_NUM_TABLE_DELTAS] = len(blocks)
    step["header"][_native.HEADER_NUM_SAMPLES] = 1
    step["slot"][0] = slot
    step["q_len"][0] = size
    step["cu_q"][:2] = 0, size
    step["ctx_len"][0] = context
    step["kv_len"][0] = context + size
    step["sample_indptr"][:2] = 0, 1
    step["sample_rows"][0] = size - 1
    step["input_ids"][:size] = -1 if gather else token_ids
    step["gather_slot"][:size] = slot if gather else -1
    step["positions"][:size] = positions
    for i, block in enumerate(blocks):
        step["table_delta"][i] = slot, i, block
    table = executor._block_table_SM[slot].copy()
    table[: len(blocks)] = blocks
    places = table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    step["slot_mapping"][:size] = places
    return step


def test_logits_are_float32_of_the_sampled_tokens_alone(executor):
    (prompt,) = prompts(1, least=20, most=20)
    write_row(executor, prompt, blocks=(1, 2, 3))

    logits = executor.execute(0)

    assert logits.shape == (1, VOCABULARY_SIZE)
    assert logits.dtype is torch.float32


def test_rows_that_sample_nothing_get_no_token(executor):
    (prompt,) = prompts(1, least=10, most=10)
    step = write_row(executor, prompt, blocks=(1, 2))
    step["sample_indptr"][:2] = 0, 0
    step["num_tokens"][0] = 9

    logits = executor.execute(0)
    executor.store_tokens(0, torch.zeros(0, dtype=torch.int32))

    assert logits.shape == (0, VOCABULARY_SIZE)
    assert step["num_tokens"][0] == 0


def test_token_that_the_plan_does_not_know_is_read_from_its_slot(executor):
    (prompt,) = prompts(1, least=10, most=10)
    write_row(executor, prompt, slot=2, blocks=(1, 2))
    executor.execute(0)
    executor.store_tokens(0, torch.tensor([77], dtype=torch.int32))
    write_row(executor, [77], slot=2, context=10)
    known = executor.execute(0).clone()

    write_row(executor, [77], slot=2, context=10, gather=True)

    assert torch.equal(executor.execute(0), known)
    write_row(executor, [78], slot=2, context=10)
    assert not torch.equal(executor.execute(0), known)


def test_block_tables_stay_with_their_slots(executor):
    first, second = prompts(2, least=12, most=12)
    write_row(executor, first, slot=1, blocks=(1, 2))
    executor.execute(0)
    write_row(executor, second, slot=3, blocks=(5, 4))
    executor.execute(0)

    write_row(executor, [9], slot=1, context=12)
    resumed = executor.execute(0).clone()
    write_row(executor, [*first, 9], slot=0, blocks=(7, 8))

    torch.testing.assert_close(executor.execute(0), resumed, atol=1e-4, rtol=0)


def test_buffers_have_room_for_whole_contexts_in_all_rows(executor):
    max_blocks = executor.memory.context_tokens // BLOCK_TOKENS

    assert executor.buffers(0)["table_delta"].shape == (CONFIG.max_rows * max_blocks, 3)
    assert executor.buffers(0) is executor.buffers(0)
    assert executor.buffers(0)["header"] is not executor.buffers(1)["header"]


class ScriptedModel:
    """Asks for the successor of each token's id."""

    def __init__(self, config, *, part, dtype):
        self._vocabulary_size = config.vocabulary_size

    def load(self, checkpoint, *, on_progress):
        on_progress("load", 1, 1)

    def logits(self, batch):
        next_ids = (batch.input_ids_T[batch.sample_rows_S] + 1) % self._vocabulary_size
        return torch.nn.functional.one_hot(next_ids, self._vocabulary_size).float()


def test_registered_model_takes_the_place_of_an_architectures(checkpoint):
    registry = default_registry()
    registry.register("Qwen2ForCausalLM", ScriptedModel)
    news = []
    executor = Executor(
        CONFIG, checkpoint, registry=registry, on_progress=lambda *told: news.append(told)
    )
    write_row(executor, [5, 40], blocks=(1,))

    assert executor.execute(0).argmax(-1).tolist() == [41]
    assert news == [("load", 1, 1)]


def test_architecture_without_a_model_is_refused_with_those_that_have_one(checkpoint):
    with pytest.raises(StartupError, match=r"Qwen2ForCausalLM.*supported: FooForCausalLM"):
        Executor(CONFIG, checkpoint, registry=ModelRegistry({"FooForCausalLM": ScriptedModel}))
