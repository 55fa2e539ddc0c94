"""The executor under plans made by hand."""

from dataclasses import replace

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


def write_row(
    executor, token_ids, *, blocks, slot=0, context=0, gather=False, new_blocks=True, set_index=0
):
    """Plans one row that computes `token_ids` and samples the last; its slot has these `blocks`."""
    step = executor.buffers(set_index)
    size = len(token_ids)
    positions = np.arange(context, context + size)
    step["header"][:] = 0
    step["header"][_native.HEADER_NUM_ROWS] = 1
    step["header"][_native.HEADER_NUM_TOKENS] = size
    step["header"][_native.HEADER_NUM_TABLE_DELTAS] = len(blocks) if new_blocks else 0
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
    table = np.array(blocks)
    places = table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    step["slot_mapping"][:size] = places
    return step


def write_copies(step, *ops):
    step["header"][_native.HEADER_NUM_COPIES] = len(ops)
    step["copy_ops"][: len(ops)] = ops


def run(executor, token=0, *, set_index=0):
    """Carries the step out, says that it sampled `token`, and returns the logits."""
    logits = executor.execute(set_index).clone()
    executor.store_tokens(set_index, torch.full((len(logits),), token, dtype=torch.int32))
    executor.wait(set_index)
    return logits


def test_logits_are_float32_of_the_sampled_tokens_alone(executor):
    (prompt,) = prompts(1, least=20, most=20)
    write_row(executor, prompt, blocks=(1, 2, 3))

    logits = run(executor)

    assert logits.shape == (1, VOCABULARY_SIZE)
    assert logits.dtype is torch.float32


def test_rows_that_sample_nothing_get_no_token(executor):
    (prompt,) = prompts(1, least=10, most=10)
    step = write_row(executor, prompt, blocks=(1, 2))
    step["sample_indptr"][:2] = 0, 0
    step["num_tokens"][0] = 9

    logits = run(executor)

    assert logits.shape == (0, VOCABULARY_SIZE)
    assert step["num_tokens"][0] == 0


def test_token_that_the_plan_does_not_know_is_read_from_its_slot(executor):
    (prompt,) = prompts(1, least=10, most=10)
    blocks = (1, 2)
    write_row(executor, prompt, slot=2, blocks=blocks)
    run(executor, 77)
    write_row(executor, [77], slot=2, context=10, blocks=blocks)
    known = run(executor, 77)

    write_row(executor, [77], slot=2, context=10, blocks=blocks, gather=True)

    assert torch.equal(run(executor, 77), known)
    write_row(executor, [78], slot=2, context=10, blocks=blocks)
    assert not torch.equal(run(executor), known)


def test_steps_are_launched_before_those_ahead_of_them_are_waited_for(executor):
    (prompt,) = prompts(1, least=10, most=10)
    blocks = (1, 2)
    write_row(executor, prompt, slot=2, blocks=blocks)
    run(executor, 77)
    write_row(executor, [77], slot=2, context=10, blocks=blocks)
    known = run(executor)

    first = write_row(executor, prompt, slot=2, blocks=blocks)
    executor.execute(0)
    executor.store_tokens(0, torch.tensor([77], dtype=torch.int32))
    second = write_row(
        executor,
        [77],
        slot=2,
        context=10,
        blocks=blocks,
        gather=True,
        new_blocks=False,
        set_index=1,
    )
    ahead = executor.execute(1).clone()
    executor.store_tokens(1, torch.tensor([5], dtype=torch.int32))
    executor.wait(0)
    executor.wait(1)

    assert torch.equal(ahead, known)
    assert (first["tokens"][0, 0], first["num_tokens"][0]) == (77, 1)
    assert (second["tokens"][0, 0], second["num_tokens"][0]) == (5, 1)


def test_set_is_not_launched_again_before_it_was_waited_for(executor):
    write_row(executor, [5, 6], blocks=(1,))
    executor.execute(0)

    with pytest.raises(AssertionError, match="waited for"):
        executor.execute(0)


def test_block_tables_stay_with_their_slots(executor):
    first, second = prompts(2, least=12, most=12)
    write_row(executor, first, slot=1, blocks=(1, 2))
    run(executor)
    write_row(executor, second, slot=3, blocks=(5, 4))
    run(executor)

    write_row(executor, [9], slot=1, context=12, blocks=(1, 2), new_blocks=False)
    resumed = run(executor)
    write_row(executor, [*first, 9], slot=0, blocks=(7, 8))

    torch.testing.assert_close(run(executor), resumed, atol=1e-4, rtol=0)


def test_place_that_changes_twice_in_a_step_ends_with_the_last(executor):
    (prompt,) = prompts(1, least=12, most=12)
    step = write_row(executor, prompt, blocks=(1, 2))
    plain = run(executor)

    step["table_delta"][:4] = [(0, 1, 9), (0, 0, 1), (0, 1, 7), (0, 1, 2)]
    step["header"][_native.HEADER_NUM_TABLE_DELTAS] = 4

    assert torch.equal(run(executor), plain)


def test_copies_come_before_what_the_step_computes(checkpoint):
    executor = Executor(replace(CONFIG, host_cache_bytes=1 << 20), checkpoint)
    first, second = prompts(2, least=16, most=16)
    write_row(executor, first, blocks=(1, 2))
    run(executor)
    write_row(executor, [9], context=16, blocks=(1, 2, 3))
    undisturbed = run(executor)

    # A step without rows brings the first prompt's blocks to the host; another prompt takes them.
    step = executor.buffers(0)
    step["header"][:] = 0
    device, host = _native.TIER_DEVICE, _native.TIER_HOST
    away = [(_native.COPY_OFFLOAD, device, block, block + 10, BLOCK_TOKENS) for block in (1, 2)]
    write_copies(step, *away)
    assert run(executor).shape == (0, VOCABULARY_SIZE)
    write_row(executor, second, blocks=(2, 1))
    run(executor)

    step = write_row(executor, [9], context=16, blocks=(7, 8, 3))
    back = [(_native.COPY_ONLOAD, host, 11, 7, BLOCK_TOKENS)]
    write_copies(step, *back, (_native.COPY_ON_WRITE, host, 12, 8, BLOCK_TOKENS))

    assert torch.equal(run(executor), undisturbed)


def test_buffers_have_room_for_whole_contexts_in_all_rows(executor):
    max_blocks = executor.memory.context_tokens // BLOCK_TOKENS

    assert executor.buffers(0)["table_delta"].shape == (CONFIG.max_rows * max_blocks, 3)
    assert executor.buffers(0)["copy_ops"].shape == (CONFIG.max_rows + max_blocks, 5)
    assert executor.buffers(0) is executor.buffers(0)
    assert executor.buffers(0)["header"] is not executor.buffers(1)["header"]


class ScriptedModel:
    """Asks for the successor of each token's id."""

    def __init__(self, config, *, part, dtype):
        self._vocabulary_size = config.vocabulary_size
        self.kernels = {}

    def load(self, checkpoint, *, on_progress):
        on_progress("load", 1, 1)

    def hidden_states(self, batch):
        return (batch.input_ids_T + 1) % self._vocabulary_size

    def logits(self, next_ids, rows):
        chosen = next_ids.index_select(0, rows).long()
        return torch.nn.functional.one_hot(chosen, self._vocabulary_size).float()

    def likeliest(self, num_rows):
        return None


def test_registered_model_takes_the_place_of_an_architectures(checkpoint):
    registry = default_registry()
    registry.register("Qwen2ForCausalLM", ScriptedModel)
    news = []
    executor = Executor(
        CONFIG, checkpoint, registry=registry, on_progress=lambda *told: news.append(told)
    )
    write_row(executor, [5, 40], blocks=(1,))

    assert run(executor).argmax(-1).tolist() == [41]
    assert news == [("load", 1, 1)]


def test_architecture_without_a_model_is_refused_with_those_that_have_one(checkpoint):
    with pytest.raises(StartupError, match=r"Qwen2ForCausalLM.*supported: FooForCausalLM"):
        Executor(CONFIG, checkpoint, registry=ModelRegistry({"FooForCausalLM": ScriptedModel}))
