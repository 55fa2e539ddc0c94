"""What `antiphon bench` asks to be measured."""

import argparse

import pytest

from antiphon_cli import bench


def asked(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    measured = []

    def run_bench(bench):
        measured.append(bench)
        return 0

    status = bench.run(parser.parse_args(["offline", "--model", "m", *words]), run_bench=run_bench)
    return status, measured


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
