"""What `antiphon bench` asks to be measured."""

import argparse
from pathlib import Path

import pytest

from antiphon_cli import bench
from antiphon_engine.api.checkpoint import Sources, resolve_model
from support.fake_hub import FakeHub


def asked(*words, model="demo", sources=None):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    measured = []

    def run_bench(bench):
        measured.append(bench)
        return 0

    def find(model, *, cache_dir, progress):
        if sources is None:
            return Path("/found", model)
        return resolve_model(model, cache_dir=cache_dir, progress=progress, sources=sources)

    arguments = parser.parse_args(["offline", "--model", model, *words])
    status = bench.run(arguments, run_bench=run_bench, find_model=find)
    return status, measured


@pytest.fixture
def no_hub():
    return Sources(hub=FakeHub())


def test_model_is_found_as_a_server_finds_it():
    _, (measured,) = asked(model="owner/name")

    assert measured.model == "/found/owner/name"


def test_directory_or_shape_is_what_it_is(tmp_path, no_hub):
    shape = tmp_path / "config.json"
    shape.write_text("{}")

    _, (of_shape,) = asked("--dummy-weights", model=str(shape), sources=no_hub)
    _, (of_directory,) = asked(model=str(tmp_path), sources=no_hub)

    assert (of_shape.model, of_directory.model) == (str(shape), str(tmp_path))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("demos", "there is no model 'demos': give a checkpoint directory"),
        ("config.json", "--dummy-weights"),
    ],
)
def test_model_that_can_not_be_had_is_told_before_an_engine_starts(
    name, said, tmp_path, no_hub, capsys
):
    (tmp_path / "config.json").write_text("{}")
    model = str(tmp_path / name) if name == "config.json" else name

    status, measured = asked(model=model, sources=no_hub)

    assert (status, measured) == (1, [])
    assert said in capsys.readouterr().err


def test_shape_alone_is_measured_with_random_weights():
    status, (measured,) = asked("--dummy-weights", "--seed", "5", "--batch-sizes", "1,4")

    assert status == 0
    assert measured.random_seed == 5
    assert measured.batch_sizes == (1, 4)
    assert measured.workloads == ("decode", "prefill", "mix", "sessions")
    assert measured.config.device == "cpu"


def test_settings_go_before_what_a_device_is_measured_with():
    _, (measured,) = asked(
        "--device", "cuda", "--set", "engine.max_step_tokens=4096", "--dtype", "bfloat16"
    )

    assert measured.random_seed is None
    assert measured.config.max_step_tokens == 4096
    assert measured.config.max_rows == 512
    assert measured.config.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ((), (1, 8, 32)),
        (("--set", "engine.max_rows=7"), (1,)),
        (("--device", "cuda"), (1, 8, 32, 128, 256)),
    ],
)
def test_unasked_batch_sizes_are_those_that_fit_into_a_step(words, sizes):
    status, (measured,) = asked(*words)

    assert status == 0
    assert measured.batch_sizes == sizes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "engine.max_row=3"), "engine.max_row"),
        (("--batch-sizes", "65"), "add --set engine.max_rows=65"),
        (("--divide", "0"), "--divide is 0"),
    ],
)
def test_what_can_not_be_measured_is_refused(words, said, capsys):
    status, measured = asked(*words)

    assert status == 2
    assert measured == []
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--batch-sizes", "0,1"), ("--workloads", "decode,mixed")])
def test_lists_are_checked_as_they_are_read(words):
    with pytest.raises(SystemExit):
        asked(*words)
