"""Every workload, small, on a shape without weights."""

import json
from dataclasses import replace

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.offline_bench import OfflineBench
from antiphon_engine.offline_bench.measuring import measure
from antiphon_engine.offline_bench.stopwatch import Stopwatch
from antiphon_engine.step_parts import StepPart

CONFIG = EngineConfig(
    num_threads=1, block_tokens=8, max_rows=8, max_step_tokens=64, kv_cache_tokens=4096
)
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    path = tmp_path_factory.mktemp("shape") / "config.json"
    path.write_text(json.dumps(SHAPE))
    return OfflineBench(
        model=str(path), random_seed=0, config=CONFIG, batch_sizes=(1, 3), divisor=64
    )


@pytest.fixture(scope="module")
def figures(bench):
    return measure(bench)


def test_every_workload_is_measured_without_a_checkpoint(figures):
    assert figures["failed"] == []
    assert figures["dummy_weights"] is True
    assert [row["batch_size"] for row in figures["decode"]] == [1, 3]
    assert len(figures["prefill"]) == 3
    assert len(figures["mix"]) == len(figures["sessions"]) == 1


def test_figures_say_what_was_sent(figures):
    (mix,), (sessions,) = figures["mix"], figures["sessions"]

    assert mix["num_requests"] == 8
    assert 8 * 1 <= mix["output_tokens"] <= 8 * 8
    assert 8 * 2 <= mix["prompt_tokens"] <= 8 * 32
    assert len(sessions["first_token_ms_p50_by_turn"]) == sessions["num_turns"] == 2


def test_each_part_of_a_steps_host_time_is_told(figures):
    (row, _) = figures["decode"]

    parts = {name.removesuffix("_us") for name in row if name.endswith("_us")}
    assert parts == {part.name.lower() for part in StepPart} | {"host"}
    assert row["launch_us"] > 0


def test_figures_are_json(figures):
    assert json.loads(json.dumps(figures))["failed"] == []


def test_model_that_is_not_there_is_named(bench, tmp_path):
    with pytest.raises(StartupError, match=r"neither a checkpoint's directory nor a config"):
        measure(replace(bench, model=str(tmp_path / "absent")))


def test_without_dummy_weights_a_shape_alone_is_refused(bench):
    with pytest.raises(StartupError, match=r"holds no \.safetensors file"):
        measure(replace(bench, random_seed=None))


def test_stopwatch_charges_time_to_the_part_named_before_it():
    times = iter([0, 10_000, 12_000, 15_000, 19_000, 20_000, 100_000, 101_000])
    watch = Stopwatch(lambda: next(times))

    for part in (StepPart.PLAN, StepPart.LAUNCH, StepPart.WAIT, StepPart.COMMIT, StepPart.PUBLISH):
        watch(part)
    watch.end_pass()

    told = watch.medians_us()
    assert (told["plan"], told["launch"], told["wait"], told["commit"]) == (10, 2, 3, 4)
    assert told["publish"] == 1
    assert told["host"] == 17


def test_passes_without_a_step_are_left_out():
    times = iter([0, 5_000])
    watch = Stopwatch(lambda: next(times))

    watch(StepPart.RECEIVE)
    watch.end_pass()

    assert watch.medians_us() == {}
