"""Where a server listens: mistakes are told in one clear line, and what is served is served."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.serve_command import Command, Runner
from support.tiny_runner import tiny_runner

LIMIT_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


ASK_UNTIL_ANSWERED = """
import sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Tries so often that it comes in while the model loads.
backoff = [(f"grpc.{each}_reconnect_backoff_ms", 50) for each in ("initial", "min", "max")]
with grpc.insecure_channel(sys.argv[1], backoff) as channel:
    print("asks", flush=True)
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest()
    print(stub.Check(request, timeout=50, wait_for_ready=True).status)
"""


@dataclass(frozen=True, slots=True)
class OverSocket:
    """A server behind a socket that took over the file of one that is gone."""

    path: Path
    first_answer: int
    """Of its health, to somebody who asked from before it was started."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with tiny_runner(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module")
def dual_stack(runner: Runner) -> Command:
    return runner.start("--listen", "[::]:0", "--insecure")


@pytest.fixture(scope="module")
def port(dual_stack: Command) -> int:
    return int(dual_stack.read_address().rpartition(":")[2])


@pytest.fixture(scope="module")
def over_socket(runner: Runner) -> OverSocket:
    path = runner.directory / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    asker = subprocess.Popen(
        [sys.executable, "-c", ASK_UNTIL_ANSWERED, f"unix:{path}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asker.stdout is not None
    assert asker.stdout.readline() == "asks\n"
    runner.start("--listen", f"unix:{path}").read_ready_line()
    told, _ = asker.communicate(timeout=LIMIT_S)
    return OverSocket(path, int(told))


def health_at(target: str) -> int:
    """Asks once, without waiting for a server to come."""
    with grpc.insecure_channel(target) as channel:
        request = health_pb2.HealthCheckRequest()
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=LIMIT_S).status)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_dual_stack_port_serves_both_as_soon_as_it_is_said(port: int, host: str) -> None:
    assert health_at(f"{host}:{port}") == SERVING


def test_socket_whose_server_is_gone_is_taken_over(over_socket: OverSocket) -> None:
    assert health_at(f"unix:{over_socket.path}") == SERVING


def test_health_answers_from_the_first_moment(over_socket: OverSocket) -> None:
    """The address is taken before the model loads, so that a second server fails early."""
    assert over_socket.first_answer == NOT_SERVING


@pytest.mark.parametrize("at", ["port", "socket"])
def test_second_server_names_what_is_taken_and_the_first_goes_on(
    runner: Runner, port: int, over_socket: OverSocket, at: str
) -> None:
    listen = f"[::]:{port}" if at == "port" else f"unix:{over_socket.path}"
    named = f"port {port}" if at == "port" else str(over_socket.path)

    exit_status, log = runner.run("--listen", listen, "--insecure")

    assert exit_status == 2
    assert named in last_line(log)
    assert "in use" in last_line(log)
    assert health_at(f"127.0.0.1:{port}" if at == "port" else listen) == SERVING


MISTAKES = {
    "nonsense": "write HOST:PORT",
    "127.0.0.1:99999": "from 0 to 65535",
    "192.0.2.1:0": "no such address",
    "no.such.host.invalid:0": "no such host",
    f"unix:/tmp/{'a' * 200}": "the system takes 107",
    "unix:/nonexistent/a.sock": "the folder does not exist",
    "unix:/proc/a.sock": "takes no sockets",
    "[::]:0": "--insecure",
}


def test_every_mistake_is_told_in_one_line_with_the_address(runner: Runner) -> None:
    commands = {
        listen: runner.start(
            "--listen", listen, *(["--insecure"] if listen.startswith(("192", "no.such")) else [])
        )
        for listen in MISTAKES
    }

    for listen, command in commands.items():
        out, log = command.process.communicate(timeout=LIMIT_S)
        assert command.process.returncode == 2, listen
        assert not out
        assert "Traceback" not in log
        assert last_line(log).startswith("antiphon: server.listen")
        assert listen.removeprefix("unix:") in last_line(log)
        assert MISTAKES[listen] in last_line(log)


def test_callers_who_speak_something_else_fail_alone(port: int) -> None:
    credentials = grpc.ssl_channel_credentials()
    with (
        grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    for spoken in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 99):
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as other:
            other.sendall(spoken)
            other.shutdown(socket.SHUT_WR)
            while other.recv(1 << 16):
                pass

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert health_at(f"127.0.0.1:{port}") == SERVING


def last_line(log: str) -> str:
    return log.strip().splitlines()[-1]
