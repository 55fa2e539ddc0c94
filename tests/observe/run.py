"""Serves the default model beside Arize Phoenix and Prometheus, chats, and says where to look.

The chat is a session of three turns and four requests. What is shown is the way of a real
deployment: spans go to Phoenix by OTLP over gRPC, and Prometheus reads the server's metrics. With
--check it compares what both backends' own APIs answer with what the client saw, prints it, and
ends, with status 1 where anything is wrong.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, str(Path(__file__).parents[1]))

from observe.backends import PROJECT, Phoenix, Prometheus
from observe.chat import Chat, chat
from observe.pictures import take_pictures
from observe.programs import Program, StartError, port_near, running
from observe.span_tree import Span, drawn, faults_of, measures_of

LOGS = Path(__file__).parents[2] / "build" / "observe"
PHOENIX = LOGS / "phoenix" / "bin" / "phoenix"
Found = TypeVar("Found")
_NEWS_LIMIT_S = 60.0
"""How long spans and metrics may take to a backend."""
_FIRST_TOKEN_P99 = (
    "histogram_quantile(0.99, sum by (le) (gen_ai_server_time_to_first_token_seconds_bucket))"
)
_NUM_FIRST_TOKENS = "sum(gen_ai_server_time_to_first_token_seconds_count)"
_NUM_ANSWERS = 7
"""Of the chat: turns and requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """All that runs."""

    phoenix: Phoenix
    prometheus: Prometheus
    target: str
    admin_target: str


@contextmanager
def staged(model: str, prometheus: Path) -> Iterator[Stage]:
    """Runs everything, backends first, until the block ends."""
    stage = Stage(
        phoenix=Phoenix(port=port_near(6006), otlp_port=port_near(4317)),
        prometheus=Prometheus(port=port_near(9090), metrics_address=f"127.0.0.1:{port_near(9464)}"),
        target=f"127.0.0.1:{port_near(50051)}",
        admin_target=f"127.0.0.1:{port_near(50052)}",
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        data = Path(folder)
        for program in (
            stage.phoenix.program(PHOENIX, data),
            stage.prometheus.program(prometheus, data),
            server_program(stage, model, data),
        ):
            print(f"starting {program.name} ...", file=sys.stderr)
            stack.enter_context(running(program, LOGS))
        yield stage


def server_program(stage: Stage, model: str, data: Path) -> Program:
    """Returns how the server is run: everything is traced, with what is said, and measured."""
    settings = (
        f"telemetry.otlp_endpoint={stage.phoenix.otlp_endpoint}",
        # Phoenix takes spans only.
        "telemetry.metrics=false",
        f"telemetry.prometheus_listen={stage.prometheus.metrics_address}",
        "telemetry.capture_content=true",
        # So that a prompt of some hundred tokens is computed in several chunks.
        "engine.max_step_tokens=256",
    )
    return Program(
        name="server",
        command=[
            *(sys.executable, "-m", "antiphon_cli.main", "serve", "--model", model),
            *("--listen", stage.target, "--admin-listen", stage.admin_target),
            *("--store", str(data / "sessions.db")),
            *(word for each in settings for word in ("--set", each)),
        ],
        environ={"OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={PROJECT}"},
        is_ready=lambda: serves(stage.target),
        start_limit_s=900.0,
    )


def serves(target: str) -> bool:
    """Whether a server takes calls. It is asked for its health, which leaves no spans."""
    with grpc.insecure_channel(target) as channel:
        try:
            told = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
        except grpc.RpcError:
            return False
    return bool(told.status == health_pb2.HealthCheckResponse.SERVING)


def wait_for(look: Callable[[], Found], is_enough: Callable[[Found], bool]) -> Found:
    """Looks until it is enough, or too late; returns what was seen last."""
    deadline_s = time.monotonic() + _NEWS_LIMIT_S
    while not is_enough(found := look()) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return found


def check(stage: Stage, said: Chat) -> list[str]:
    """Prints what the backends tell of a chat, and returns what is wrong with it."""
    wanted = {answer.trace_id for answer in said.answers}

    def is_whole(spans: Sequence[Span]) -> bool:
        # A call is told as it ends, behind its turns.
        return wanted <= {span.trace_id for span in spans if not span.parent_id}

    spans = wait_for(stage.phoenix.spans, is_whole)
    for top in (span for span in spans if not span.parent_id and span.trace_id in wanted):
        print("\n".join(drawn(spans, top)))
    for answer in said.answers:
        print(f"turn {answer.span_id}: {measures_of(answer, spans) or 'not there'}")
    faults = [fault for answer in said.answers for fault in faults_of(answer, spans)]
    num = wait_for(
        lambda: stage.prometheus.value(_NUM_FIRST_TOKENS), lambda num: num == _NUM_ANSWERS
    )
    if num != _NUM_ANSWERS:
        faults.append(f"Prometheus knows {num} first tokens of {_NUM_ANSWERS}")
    p99_s = stage.prometheus.value(_FIRST_TOKEN_P99)
    print(f"Prometheus: p99 of the time to first token is {p99_s} s, of {num} answers")
    if p99_s is None or not p99_s > 0:
        faults.append(f"Prometheus says {p99_s} s for the p99 of the time to first token")
    return faults


def guide(stage: Stage, said: Chat) -> Iterator[str]:
    """Yields the lines that say where to look."""
    yield f"traces     {stage.phoenix.trace_url(said.answers[0].trace_id)}"
    yield f"metrics    {stage.prometheus.graph_url(_FIRST_TOKEN_P99)}"
    yield f"server     {stage.target}, to talk to: antiphon chat --target {stage.target}"
    yield f"live       antiphon top --target {stage.admin_target}"
    yield "Ctrl-C ends all of it."


def observe(arguments: argparse.Namespace, prometheus: Path) -> int:
    """Does what the command line says; returns the exit status."""
    with staged(arguments.model, prometheus) as stage:
        print("chatting ...", file=sys.stderr)
        said = asyncio.run(chat(stage.target))
        faults = check(stage, said)
        for fault in faults:
            print(f"wrong: {fault}", file=sys.stderr)
        if arguments.pictures is not None:
            trace_url = stage.phoenix.trace_url(said.answers[0].trace_id)
            take_pictures(arguments.pictures, trace_url, stage.target, stage.admin_target)
        elif not arguments.check:
            print("\n".join(guide(stage, said)))
            signal.pause()
    return 1 if faults else 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="compare, print, and end")
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="FOLDER",
        help="take pictures of a trace and of `antiphon top`, by Debian's chromium, and end",
    )
    parser.add_argument("--model", default="demo", help="what to serve (default: demo)")
    arguments = parser.parse_args()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        print("On Debian: apt install --no-install-recommends prometheus", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return observe(arguments, Path(prometheus))
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
