"""`antiphon top`, over an engine whose counters a test writes."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
import pytest
from antiphon.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from rich.console import Console

from antiphon_cli.engine_looks import looks
from antiphon_cli.engine_view import EngineView, rates
from antiphon_cli.main import main
from antiphon_client import AdminClient, NotReachable, ServerError
from support.scripted_services import refuse, serving
from support.terminal import CTRL_C, Terminal


def ms(value: float) -> Duration:
    return Duration(nanos=round(value * 1e6))


def sample(at_s: int, **counters: object) -> admin_pb2.EngineStats:
    """Counters of an engine that started at 100."""
    stats = admin_pb2.EngineStats(
        model="models/tiny",
        start_time=Timestamp(seconds=100),
        sample_time=Timestamp(seconds=100 + at_s),
        step=10 * at_s,
        num_running=3,
        num_waiting=2,
        num_blocks=100,
        num_blocks_used=50,
        num_blocks_cached=25,
        num_blocks_free=25,
        num_prefilled_tokens_total=100 * at_s,
        num_reused_tokens_total=300 * at_s,
        num_generated_tokens_total=40 * at_s,
        num_finished_total={"STOP": 7},
        step_time=ms(12.3),
        schedule_time=ms(0.21),
        latencies=admin_pb2.RecentLatencies(
            num_requests=57,
            time_to_first_token=admin_pb2.Quantiles(p50=ms(152), p99=ms(612)),
            time_per_output_token=admin_pb2.Quantiles(p50=ms(12), p99=ms(31)),
        ),
    )
    stats.MergeFrom(admin_pb2.EngineStats(**counters))
    return stats


def shown(view: EngineView, *, width: int = 100, **how: object) -> str:
    console = Console(width=width, highlight=False, **how)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


class Engine(admin_pb2_grpc.AdminServiceServicer):
    """Tells samples, one a call of a watch, then ends it as said."""

    def __init__(self, *, num_samples: int = 10**6, ends_with: str = "") -> None:
        self.num_samples = num_samples
        self.ends_with = ends_with
        self.num_told = 0

    async def WatchEngineStats(
        self, request: admin_pb2.WatchEngineStatsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[admin_pb2.EngineStats]:
        for _ in range(self.num_samples):
            self.num_told += 1
            yield sample(self.num_told)
            await asyncio.sleep(request.interval.ToTimedelta().total_seconds())
        info = error_details_pb2.ErrorInfo(reason=self.ends_with or "ENGINE_DOWN")
        code = grpc.StatusCode.UNAVAILABLE
        if self.ends_with:
            code = grpc.StatusCode.UNAUTHENTICATED
        await refuse(context, code, "no more", info)


def test_two_looks_tell_what_happens_a_second():
    view = EngineView("here:1")
    view.take(sample(10))
    view.take(sample(12))

    text = shown(view)

    assert "models/tiny at here:1, up 12 s, step 120" in text
    assert "running 3   waiting 2   paused 0   held 0" in text
    assert "used 50 %   cached 25 %   free 25 %" in text
    assert "computed     100 tokens a second" in text
    assert "300 tokens a second, 75 % of the prompts'; 75 % of all prompts' tokens" in text
    assert "generated    40.0 tokens a second" in text
    assert "10.0 a second, the last 12.3 ms, 0.21 ms of it for planning" in text
    assert "first token  p50 152 ms   p99 612 ms   (57 requests of the last minute)" in text
    assert "each token   p50 12.0 ms   p99 31.0 ms" in text
    assert "STOP 7" in text
    assert "\x1b" not in text


def test_bar_is_to_scale():
    view = EngineView("here:1")
    view.take(sample(10))

    [line] = [line for line in shown(view).splitlines() if line.startswith("KV cache")]

    width = line.count("#") + line.count("=") + line.count(".")
    assert line.count("#") == pytest.approx(width / 2, abs=1)
    assert line.count("=") == pytest.approx(width / 4, abs=1)


def test_first_look_and_another_engine_have_no_rates():
    restarted = sample(20)
    restarted.start_time.seconds += 15

    assert rates(None, sample(1)) is None
    assert rates(sample(9), restarted) is None
    assert rates(sample(9), sample(9)) is None


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_view_keeps_to_its_width(width: int):
    view = EngineView("here:1")
    view.take(sample(10, num_host_blocks=10, num_host_blocks_used=3))

    assert max(map(len, shown(view, width=width).splitlines())) <= width


def test_what_was_seen_last_stays_while_the_server_is_away():
    view = EngineView("here:1")
    view.take(sample(10))

    assert view.lose("gone")
    assert not view.lose("gone")
    text = shown(view)
    assert text.startswith("gone; trying again\n")
    assert "running 3" in text
    view.take(sample(11))
    assert "gone" not in shown(view)


async def test_looks_go_on_over_a_restart_of_the_server():
    losses: list[ServerError] = []
    told = []
    async with serving(admin=Engine(num_samples=2)) as target:
        port = int(target.rpartition(":")[2])
        client = AdminClient(target)
        stream = looks(client, model="", interval_s=0.01, on_loss=losses.append, retry_s=0.01)
        told = [await anext(stream) for _ in range(4)]
    waiting = asyncio.ensure_future(anext(stream))
    async with serving(admin=Engine(), port=port):
        told.append(await waiting)
        await stream.aclose()
        await client.close()

    assert [stats.step for stats in told] == [10, 20, 30, 40, 10]
    assert {error.reason for error in losses} >= {"ENGINE_DOWN"}


async def test_looks_end_where_another_try_would_not_help():
    engine = Engine(num_samples=1, ends_with="BAD_CREDENTIAL")
    async with serving(admin=engine) as target, AdminClient(target) as client:
        stream = looks(client, model="", interval_s=0.01, on_loss=pytest.fail, retry_s=0.01)
        await anext(stream)
        with pytest.raises(ServerError, match="no more"):
            await anext(stream)


async def test_who_is_no_admin_is_told_what_opens_the_port(capsys):
    engine = Engine(num_samples=0, ends_with="BAD_CREDENTIAL")
    async with serving(admin=engine) as target:
        status = await asyncio.to_thread(main, ["top", "--once", "--target", target])

    assert status == 1
    assert "name an admin's token with --token-file" in capsys.readouterr().err


async def test_nobody_is_waited_for_who_was_never_there():
    async with serving(admin=Engine()) as target:
        pass
    async with AdminClient(target) as client:
        with pytest.raises(NotReachable):
            await anext(looks(client, model="", interval_s=1, on_loss=pytest.fail))


async def run(target: str, *words: str) -> int:
    return await asyncio.to_thread(main, ["top", "--target", target, "--interval", "0.1", *words])


async def test_once_writes_one_look_with_its_rates(capsys):
    async with serving(admin=Engine()) as target:
        assert await run(target, "--once") == 0

    said = capsys.readouterr().out
    assert said.count("models/tiny") == 1
    assert "tokens a second" in said


async def test_json_has_all_counters_also_those_of_nothing(capsys):
    async with serving(admin=Engine()) as target:
        assert await run(target, "--once", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["num_running"], told["num_paused"]) == (3, 0)
    assert told["latencies"]["time_to_first_token"]["p50"] == "0.152s"


async def test_wrong_use_and_no_server_are_told_in_one_line(capsys):
    async with serving(admin=Engine()) as target:
        assert await run(target, "--interval", "0.01") == 2
    assert await run(target, "--once") == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "must be from 0.1" in lines[0]
    assert "no server answers" in lines[1]


@contextmanager
def top_at_terminal(target: str, *, kind: str) -> Iterator[Terminal]:
    words = ["top", "--target", target, "--interval", "0.1"]
    environ = {"TERM": kind, "COLUMNS": "100", "LINES": "30"}
    with Terminal("antiphon_cli.main", words, environ=environ) as terminal:
        yield terminal


@pytest.mark.parametrize(("key", "status"), [("q", 0), (CTRL_C, 130)])
async def test_screen_is_drawn_and_left_as_it_was(key: str, status: int):
    def use(target: str) -> int:
        with top_at_terminal(target, kind="xterm") as terminal:
            terminal.expect("running 3")
            terminal.expect("running 3")
            terminal.type(key)
            return terminal.wait()

    async with serving(admin=Engine()) as target:
        assert await asyncio.to_thread(use, target) == status


async def test_screen_tells_of_a_server_that_is_away_and_waits_for_it():
    def use(target: str) -> int:
        with top_at_terminal(target, kind="xterm") as terminal:
            terminal.expect("running 3")
            terminal.expect("no more (ENGINE_DOWN); trying again")
            terminal.expect("running 3")
            terminal.type("q")
            return terminal.wait()

    async with serving(admin=Engine(num_samples=1)) as target:
        assert await asyncio.to_thread(use, target) == 0


async def test_engine_that_is_not_there_yet_is_waited_for_in_sight():
    def use(target: str) -> int:
        with top_at_terminal(target, kind="xterm") as terminal:
            terminal.expect("antiphon: no more (ENGINE_DOWN); trying again")
            terminal.type(CTRL_C)
            return terminal.wait()

    async with serving(admin=Engine(num_samples=0)) as target:
        assert await asyncio.to_thread(use, target) == 130


async def test_port_for_clients_is_told_from_the_right_one(capsys):
    async with serving(inference=inference_pb2_grpc.InferenceServiceServicer()) as target:
        assert await run(target, "--once") == 1

    assert "name the port for administration" in capsys.readouterr().err


async def test_dumb_terminals_get_looks_line_by_line():
    def use(target: str) -> int:
        with top_at_terminal(target, kind="dumb") as terminal:
            terminal.expect("running 3")
            terminal.expect("tokens a second")
            terminal.type(CTRL_C)
            return terminal.wait()

    async with serving(admin=Engine()) as target:
        assert await asyncio.to_thread(use, target) == 130
