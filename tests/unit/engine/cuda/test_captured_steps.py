"""The CUDA executor's tables, padding and captured steps, on the CPU by a recorder that repeats."""

import numpy as np
import pytest

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams
from support.graph_model import RecorderThatRepeats, load_on_cpu
from support.greedy_engine import GreedyEngine
from support.loop_harness import request, running_loop_of
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts

NUM_OUTPUT_TOKENS = 20
PROMPTS = prompts(7, least=1, most=90)


BUCKETS_UP_TO_7_ROWS = [7, 4, 2, 1]


def config_of(**settings):
    defaults = {
        "dtype": "float32",
        "cpu_kernels": "torch",
        "num_threads": 1,
        "block_tokens": 8,
        "max_rows": 7,
        "max_step_tokens": 80,
        "kv_cache_tokens": 2048,
    }
    return EngineConfig(**(defaults | settings))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("qwen3"), TinyModel(family="qwen3"))


@pytest.fixture(scope="module")
def expected(checkpoint):
    return GreedyEngine(checkpoint, config_of()).generate(PROMPTS, NUM_OUTPUT_TOKENS)


@pytest.mark.parametrize(
    ("captured", "settings"),
    [
        (False, {}),
        (True, {}),
        (True, {"max_rows": 3}),
        (True, {"chunk_tokens": 16}),
        (True, {"block_tokens": 32}),
    ],
    ids=str,
)
def test_tokens_are_those_of_the_plain_executor(checkpoint, expected, settings, captured):
    config = config_of(**settings)
    model, _ = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats() if captured else None)
    engine = GreedyEngine(checkpoint, config, model)

    first = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)
    warm = engine.generate(PROMPTS, NUM_OUTPUT_TOKENS)

    assert first == expected
    assert warm == expected
    assert (model.executor.num_replays > 0) == captured
    assert (model.executor.num_mixed_replays > 0) == captured


def run_loop(model, config, checkpoint, asked):
    with running_loop_of(model, config, checkpoint=str(checkpoint)) as harness:
        for request_id, one in asked.items():
            harness.submit(request_id, one)
        harness.run()
        assert not any(harness.heard.failed.values())
        return dict(harness.heard.tokens), harness.stats()


def mixed_requests():
    """Greedy ones, and others that want what no captured step does."""
    drawn = SamplingParams(seed=3, temperature=0.9, top_p=0.8)
    penalised = SamplingParams(seed=4, temperature=0.0, repetition_penalty=1.4)
    stop = StopParams(max_output_tokens=18)
    return {
        1: request(*PROMPTS[0], stop=stop),
        2: request(*PROMPTS[1], stop=stop, sampling=drawn),
        3: request(*PROMPTS[2], stop=stop, sampling=penalised, top_logprobs=2),
        4: request(*PROMPTS[3], stop=StopParams(max_output_tokens=40)),
        5: request(*PROMPTS[4], stop=stop, prompt_logprobs=1),
        6: request(7, stop=stop, prompt_logprobs=0),
    }


@pytest.fixture(scope="module")
def said(checkpoint):
    """What the mixed requests say without steps ahead, launched part by part."""
    config = config_of()
    model, _ = load_on_cpu(config, checkpoint, recorder=None)
    return run_loop(model, config, checkpoint, mixed_requests())[0]


@pytest.mark.parametrize(("run_ahead", "fault_pause_every"), [(0, 0), (1, 0), (1, 5), (2, 5)])
def test_ahead_and_paused_requests_say_the_same(checkpoint, said, run_ahead, fault_pause_every):
    config = config_of(run_ahead=run_ahead, fault_pause_every=fault_pause_every)
    model, _ = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats())

    tokens, stats = run_loop(model, config, checkpoint, mixed_requests())

    assert tokens == said
    assert model.executor.num_replays > 0
    assert (stats.num_preemptions_total > 0) == (fault_pause_every > 0)


def test_ahead_of_a_prompt_that_joins_those_that_generate(checkpoint):
    asked = [
        request(*PROMPTS[0][:20], stop=StopParams(max_output_tokens=16)),
        request(*PROMPTS[1][:12], stop=StopParams(max_output_tokens=9)),
    ]
    config = config_of(run_ahead=1)

    def join(model):
        with running_loop_of(model, config, checkpoint=str(checkpoint)) as harness:
            harness.submit(1, asked[0])
            for _ in range(5):
                harness.step()
            harness.submit(2, asked[1])
            harness.run()
            return dict(harness.heard.tokens)

    said = join(load_on_cpu(config, checkpoint, recorder=None)[0])
    model, graph_model = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats())
    graph_model.mixed_sizes.clear()

    tokens = join(model)

    assert tokens == said
    assert graph_model.mixed_sizes == [(64, 16, 0), (64, 16 + 7, 7)]


def test_steps_are_padded_to_the_next_bucket(checkpoint):
    config = config_of(max_rows=7)
    model, graph_model = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats())
    assert graph_model.decode_sizes == BUCKETS_UP_TO_7_ROWS
    graph_model.decode_sizes.clear()
    engine = GreedyEngine(checkpoint, config, model)

    engine.generate([[5], [6], [7]], 4)

    assert graph_model.decode_sizes == [4] * model.executor.num_replays
    assert model.executor.num_replays == 4


def test_steps_with_prompts_are_padded_between_and_behind(checkpoint):
    config = config_of(max_rows=7, max_step_tokens=80)
    model, graph_model = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats())
    engine = GreedyEngine(checkpoint, config, model)
    graph_model.mixed_sizes.clear()

    engine.generate([PROMPTS[0][:30]], 2)

    assert graph_model.mixed_sizes == [(64, 16, 0)]
    assert model.executor.num_mixed_replays == 1


def test_steps_in_parts_compute_logits_of_as_many_rows_as_captured_ones(checkpoint):
    config = config_of(max_rows=7)
    model, graph_model = load_on_cpu(config, checkpoint, recorder=None)
    engine = GreedyEngine(checkpoint, config, model)

    engine.generate([PROMPTS[0][:9], [5], [6]], 2)
    sizes = list(graph_model.logits_sizes)
    graph_model.logits_sizes.clear()
    engine.generate([PROMPTS[1][:9], [7], [8], [9], [10]], 2)

    assert sizes == [4, 4]
    assert graph_model.logits_sizes == [7, 7]


def test_padding_writes_into_no_ones_block(checkpoint):
    config = config_of(max_rows=7)
    model, _ = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats())
    engine = GreedyEngine(checkpoint, config, model)
    engine.generate([PROMPTS[0]], 3)
    tables = model.executor._tables

    engine.generate([[5], [6], [7]], 4)

    assert not tables.blocks_SM[tables.scratch_slot].any()
    step = model.executor._captured.decode_slab.arrays(4)
    assert step.slots_B[3] == tables.scratch_slot
    assert step.positions_B[3] == -1


def test_step_with_more_table_changes_than_a_captured_one_has_is_launched_in_parts(checkpoint):
    config = config_of()
    model, graph_model = load_on_cpu(config, checkpoint, recorder=RecorderThatRepeats())
    executor = model.executor
    step = executor.buffers(0)
    step["header"][:] = 0
    step["header"][_native.HEADER_NUM_ROWS] = step["header"][_native.HEADER_NUM_TOKENS] = 1
    step["header"][_native.HEADER_NUM_SAMPLES] = 1
    step["header"][_native.HEADER_NUM_TABLE_DELTAS] = 3
    step["sample_indptr"][:2] = step["cu_q"][:2] = (0, 1)
    step["sample_rows"][0] = 0
    step["input_ids"][0], step["gather_slot"][0] = 5, -1
    step["q_len"][0] = step["kv_len"][0] = 1
    step["slot_mapping"][0] = 8
    step["table_delta"][:3] = [(0, 0, 1), (0, 1, 2), (0, 2, 3)]
    graph_model.decode_sizes.clear()

    executor.store_tokens(0, executor.execute(0).argmax(-1).int())
    executor.wait(0)

    assert graph_model.decode_sizes == []
    assert executor._tables.blocks_SM[0, :3].tolist() == [1, 2, 3]


def test_deltas_of_one_place_end_with_the_last(checkpoint):
    config = config_of()
    tables = load_on_cpu(config, checkpoint, recorder=None)[0].executor._tables
    deltas = np.array([(2, 1, 5), (2, 1, 9), (3, 0, 4)], np.int32)

    tables.settle(deltas)

    assert deltas.tolist() == [[2, 1, 9], [2, 1, 9], [3, 0, 4]]


def test_largest_step_has_no_row_that_is_longer_than_a_context(checkpoint):
    config = config_of(max_rows=2, max_step_tokens=400, max_context_tokens=100)
    loaded, model = load_on_cpu(config, checkpoint, recorder=None)

    loaded.executor.run_largest_step()

    assert model.mixed_sizes == [(2 * 97, 2, 0)]
