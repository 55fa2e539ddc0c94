"""`antiphon serve` as people run it: a process, with a tiny checkpoint on a real engine."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    types_pb2,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.engine_zygote import forked
from support.serve_command import Runner, address_in, checkers_of, engines_of, serve_runner
from support.tiny_checkpoints import make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_checkpoint(tmp_path_factory.mktemp("model") / "tiny-qwen2")
    return save_byte_level_tokenizer(directory)


@pytest.fixture
def runner(tmp_path: Path, checkpoint: Path) -> Iterator[Runner]:
    with serve_runner(tmp_path, checkpoint) as made:
        yield made


@pytest.fixture
def quick_runner(tmp_path: Path, checkpoint: Path) -> Iterator[Runner]:
    """By forks that spare the imports, for what doesn't hang on how a process starts."""
    with serve_runner(tmp_path, checkpoint, engine_command=forked("antiphon_engine")) as made:
        yield made


def generate(channel: grpc.Channel, num_tokens: int) -> inference_pb2.GenerateResponse:
    return inference_pb2_grpc.InferenceServiceStub(channel).Generate(
        inference_pb2.GenerateRequest(
            prompt=types_pb2.Prompt(text="The harbour lay"),
            config=types_pb2.GenerationConfig(
                sampling=types_pb2.SamplingParams(temperature=0),
                stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
            ),
        ),
        timeout=30,
        wait_for_ready=True,
    )


def wait_serving(channel: grpc.Channel) -> None:
    """Waits as a load balancer does, from a port that nobody has yet to a model that is there."""
    request = health_pb2.HealthCheckRequest()
    watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60, wait_for_ready=True)
    while next(watch).status != health_pb2.HealthCheckResponse.SERVING:
        pass
    watch.cancel()


def test_checkers_start_with_the_server(runner: Runner) -> None:
    command = runner.start("--set", "constraints.load_at_start=true")
    command.read_address()

    deadline_s = time.monotonic() + 60
    while len(checkers_of(command.process.pid)) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    checkers = checkers_of(command.process.pid)
    # What they load would have to be waited for, and takes long beside other tests.
    for checker in checkers:
        os.kill(checker, signal.SIGKILL)
    assert len(checkers) == 2


def test_checkers_wait_for_their_first_use_where_that_is_wanted(quick_runner: Runner) -> None:
    command = quick_runner.start("--set", "constraints.load_at_start=false")
    command.read_address()

    assert checkers_of(command.process.pid) == []


def test_each_line_of_a_log_in_json_is_an_object(quick_runner: Runner) -> None:
    command = quick_runner.start("--set", "logging.format=json")
    command.read_ready_line()

    _, log = command.end()

    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert {"settings", "starting", "stopped"} <= set(events)


def test_server_says_where_it_serves_answers_and_ends_with_zero(runner: Runner) -> None:
    command = runner.start()
    line = command.read_ready_line()
    with grpc.insecure_channel(address_in(line)) as channel:
        answer = generate(channel, 5)
        status = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    (engine_pid,) = engines_of(command.process.pid)
    front_end_maps = Path(f"/proc/{command.process.pid}/maps").read_text()

    exit_status, log = command.end()

    assert "libtorch" not in front_end_maps
    assert re.fullmatch(r"Antiphon serves models/tiny-qwen2 on 127\.0\.0\.1:\d+", line)
    assert answer.usage.output_tokens == 5
    assert status.status == health_pb2.HealthCheckResponse.SERVING
    assert exit_status == 0, log
    assert not Path(f"/proc/{engine_pid}").exists()


def test_server_that_is_still_loading_ends_when_told(runner: Runner) -> None:
    command = runner.start()
    assert command.process.stderr is not None
    assert "settings" in command.process.stderr.readline()

    exit_status, log = command.end(signal.SIGINT)

    assert exit_status == 0, log
    assert "Traceback" not in log


def test_second_signal_ends_the_server_though_a_call_runs(runner: Runner) -> None:
    command = runner.start()
    address = address_in(command.read_ready_line())
    with grpc.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        next(watch)
        stream = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(
            inference_pb2.GenerateRequest(
                prompt=types_pb2.Prompt(text="a"),
                config=types_pb2.GenerationConfig(stop=types_pb2.StopConditions(ignore_eos=True)),
            )
        )
        next(stream)
        (engine_pid,) = engines_of(command.process.pid)
        os.kill(engine_pid, signal.SIGSTOP)
        command.process.send_signal(signal.SIGTERM)
        told = next(watch)

        exit_status, _ = command.end(signal.SIGINT, limit_s=5)
        os.kill(engine_pid, signal.SIGKILL)

    assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert exit_status != 0


def test_second_server_on_a_port_fails_at_once_and_names_it(quick_runner: Runner) -> None:
    first = quick_runner.start()
    address = address_in(first.read_ready_line())

    exit_status, log = quick_runner.run("--listen", address)

    last_line = log.strip().splitlines()[-1]
    assert exit_status not in (0, None)
    assert f"can't listen on {address}: port {address.rpartition(':')[2]} is in use" in last_line
    assert "Traceback" not in log
    assert "warm-up" not in log  # It fails before it loads anything, and so at once.
    assert not list(quick_runner.directory.glob("sessions-1*"))


def test_second_server_on_a_session_store_fails_before_it_loads_a_model(
    quick_runner: Runner,
) -> None:
    store = str(quick_runner.directory / "sessions.db")
    quick_runner.start("--store", store).read_ready_line()

    exit_status, log = quick_runner.run("--store", store)

    assert exit_status not in (0, None)
    assert store in log.strip().splitlines()[-1]
    assert "warm-up" not in log


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--listen", "unix:/nonexistent/a.sock"], "the folder does not exist"),
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--set", "engine.max_rowz=5"], "did you mean engine.max_rows?"),
        (["--model", "/nonexistent"], "/nonexistent"),
        (["--store", "."], "is a folder"),
        (["--store", "tokenizer.json"], "a file of another kind"),
        (["--set", "model.chat_template=/nonexistent.jinja"], "/nonexistent.jinja"),
        (["--set", "model.name=a/b"], "model.name"),
    ],
)
def test_mistake_is_told_in_one_clear_line(
    quick_runner: Runner, flags: list[str], told: str
) -> None:
    (quick_runner.directory / "tokenizer.json").write_text("{}")

    exit_status, log = quick_runner.run(*flags)

    assert exit_status not in (0, None)
    assert told in log.strip().splitlines()[-1]
    assert "Traceback" not in log
    secrets = quick_runner.directory.glob("*.secret")
    assert [path for path in secrets if not path.with_suffix("").exists()] == []


def test_misspelt_variable_is_told_in_one_clear_line(runner: Runner) -> None:
    exit_status, log = runner.run(environ=[("ANTIPHON_ENGINE__MAX_ROWZ", "5")])

    assert exit_status not in (0, None)
    assert "did you mean ANTIPHON_ENGINE__MAX_ROWS?" in log


def test_cache_too_small_for_the_context_is_told_with_numbers(quick_runner: Runner) -> None:
    """Either the start fails, or the context is lowered to what fits and model and log say so."""
    command = quick_runner.start("--set", "engine.kv_cache_tokens=64")
    assert command.process.stdout is not None
    line = command.process.stdout.readline()
    if line:
        with (
            grpc.insecure_channel(address_in(line.strip())) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            generate(channel, 100)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "64" in caught.value.details()
        command.end()
    else:
        _, log = command.process.communicate()
        assert "64" in log.strip().splitlines()[-1]


def test_unix_socket_is_served_and_a_stale_file_replaced(quick_runner: Runner) -> None:
    path = quick_runner.directory / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    command = quick_runner.start("--listen", f"unix:{path}")
    line = command.read_ready_line()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answer = generate(channel, 1)

    assert line.endswith(f"unix:{path}")
    assert answer.usage.output_tokens == 1


def test_server_and_engine_need_no_standard_streams(runner: Runner) -> None:
    check_served_with(runner, "<&- >&- 2>&-")


@pytest.mark.parametrize("streams", [">/dev/full", "2>/dev/full"])
def test_server_serves_though_nobody_can_be_told(quick_runner: Runner, streams: str) -> None:
    check_served_with(quick_runner, streams)


def check_served_with(runner: Runner, streams: str) -> None:
    address = f"unix:{runner.directory / 'a.sock'}"
    command = runner.start("--listen", address, streams=streams)
    with grpc.insecure_channel(address) as channel:
        wait_serving(channel)
        answer = generate(channel, 1)

    exit_status, log = command.end()

    assert answer.usage.output_tokens == 1
    assert exit_status == 0, log


def test_engine_that_stops_answering_turns_health_and_is_replaced(quick_runner: Runner) -> None:
    command = quick_runner.start("--set", "engine.stall_limit_s=2")
    address = address_in(command.read_ready_line())
    (engine_pid,) = engines_of(command.process.pid)
    with grpc.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        told = [next(watch).status]

        os.kill(engine_pid, signal.SIGSTOP)
        told += [next(watch).status, next(watch).status]
        answer = generate(channel, 2)

    serving, not_serving = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    assert told == [serving, not_serving, serving]
    assert answer.usage.output_tokens == 2
