"""Measures what collectors in trouble cost a server, how it ends beside them, and strange callers.

Servers over an engine that computes nothing, which answers at a pace, stand side by side: two
without telemetry, and one for each kind of collector, to which spans and metrics go. They take
turns at the same load, in an order that changes. Then each is asked to end right behind some
requests. At last ten thousand callers bring a name of their own each to a server that is measured.

The last line is one JSON object. It ends with status 1 where what must hold does not: memory, the
number of warnings, spans that arrive, the time to the end, series. Throughput, delays and the front
end's time on the cores are compared with a server without telemetry of the same round; what the
other one without, the control, differs from it by is the machine's own. On a machine with nothing
else to do, --strict makes the bar of throughput and delays a condition too.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, StopConditions

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon_server.listen import SocketAddress
from support.collector_process import Collector, collecting
from support.fake_engine_process import Behaviour, fake_engine_command
from support.hollow_checkpoint import save_hollow_checkpoint
from support.otlp_sink import Mood
from support.process_figures import memory_bytes, whole_cpu_time_ns
from support.scrapes import Scraped, scrape
from support.strangers import call_all, strangers
from torture.victim import Victim

OFF, CONTROL, TAKING, ABSENT, REFUSING, SILENT, SLOW = KINDS = (
    "off",
    "control",
    "taking",
    "absent",
    "refusing",
    "silent",
    "slow",
)
_MOODS = {TAKING: Mood.TAKES, REFUSING: Mood.REFUSES, SILENT: Mood.SILENT, SLOW: Mood.SLOW}
_SLOW_S = 2.0
_STEP_S = 0.02
_OUTPUT_TOKENS = 16
MAX_WAITING = 1000
"""Records that may wait; the load has more of them by far."""
FLUSH_LIMIT_S = 3.0
MAX_GROWTH_BYTES = 32 << 20
"""Of memory, over what a server without telemetry grows by."""
MAX_NEW_SERIES = 50
MAX_SLOWER_PCT = 3.0
"""Less throughput, and a longer p99, than without telemetry."""
_END_SLACK_S = 1.0
_NUM_LAST = 50
_SPAN = "text_completion tiny"
"""Of a request."""
_COMPARED = (("throughput", "requests_per_s"), ("p99", "p99_s"), ("cpu", "cpu_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    num_rounds: int
    num_requests: int
    """A round."""
    num_at_a_time: int
    num_strangers: int
    """Of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a load went."""

    requests_per_s: float
    p99_s: float
    cpu_s: float
    """Of the front end's, on any core, for the whole load."""


@dataclass(slots=True, kw_only=True)
class Served:
    """A server, and what was measured of it."""

    kind: str
    victim: Victim
    collector: Collector | None
    """What is asked of, where one is that answers."""
    begin_s: float
    """Before it could warn of anything, on the monotonic clock."""
    paces: list[Pace] = field(default_factory=list)
    first_bytes: int = 0
    """Its memory behind the first round."""
    growth_bytes: int = 0
    end_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def metrics_address(self) -> SocketAddress:
        """Where its metrics are read."""
        return SocketAddress(str(self.victim.directory / "metrics.sock"))


def compared_pct(servers: Sequence[Served], kind: str, name: str) -> list[float]:
    """Returns, round by round, how much more of something a server has than the one without."""
    own = next(server for server in servers if server.kind == kind)
    off = next(server for server in servers if server.kind == OFF)
    return [
        100 * (getattr(mine, name) / getattr(plain, name) - 1)
        for mine, plain in zip(own.paces, off.paces, strict=True)
    ]


def faults_of(servers: Sequence[Served]) -> list[str]:
    """Returns what does not hold although it must."""
    off = next(server for server in servers if server.kind == OFF)
    faults = []
    for server in servers:
        more_bytes = server.growth_bytes - off.growth_bytes
        if more_bytes > MAX_GROWTH_BYTES:
            faults.append(f"{server.kind}: {more_bytes >> 20} MiB more than without telemetry")
        if server.end_s > off.end_s + FLUSH_LIMIT_S + _END_SLACK_S:
            faults.append(f"{server.kind}: took {server.end_s:.1f} s to its end")
        if server.figures["warnings"] > server.figures["minutes"] + 1:
            faults.append(f"{server.kind}: {server.figures['warnings']:.0f} warnings")
        dropped = server.figures["spans_dropped"]
        if server.kind == TAKING and (dropped or server.figures["last_spans"] != _NUM_LAST):
            faults.append(f"{server.kind}: spans are missing")
        if server.kind in (ABSENT, REFUSING, SILENT) and not dropped:
            faults.append(f"{server.kind}: no span was dropped")
    return faults


def slowed(servers: Sequence[Served]) -> list[str]:
    """Returns which collectors cost more throughput or delay than they may."""
    return [
        f"{server.kind}: {name} {middle_pct:+.1f} %"
        for server in servers
        if server.kind not in (OFF, CONTROL)
        for name, attribute, worse in (("throughput", "requests_per_s", -1), ("p99", "p99_s", 1))
        if (middle_pct := statistics.median(compared_pct(servers, server.kind, attribute))) * worse
        > MAX_SLOWER_PCT
    ]


def told(servers: Sequence[Served]) -> dict[str, object]:
    """Returns what is said of collectors."""
    figures: dict[str, object] = {}
    for server in servers:
        own: dict[str, object] = {
            "growth_mib": round(server.growth_bytes / (1 << 20), 1),
            "end_s": round(server.end_s, 2),
            **{name: round(value) for name, value in server.figures.items() if name != "minutes"},
        }
        if server.kind != OFF:
            for name, attribute in _COMPARED:
                each_pct = compared_pct(servers, server.kind, attribute)
                low, middle, high = statistics.quantiles(each_pct, n=4, method="inclusive")
                own[f"{name}_pct"] = round(middle, 2)
                own[f"{name}_quartiles_pct"] = [round(low, 2), round(high, 2)]
        figures[server.kind] = own
    figures["slowed"] = slowed(servers)
    return figures


async def run_load(victim: Victim, num_requests: int, num_at_a_time: int) -> Pace:
    """Sends requests, so many at a time."""
    left = iter(range(num_requests))
    waits_s: list[float] = []

    async def ask_on(stub: InferenceServiceStub) -> None:
        for _ in left:
            begin_s = time.perf_counter()
            await stub.Generate(_request())
            waits_s.append(time.perf_counter() - begin_s)

    cpu_ns = whole_cpu_time_ns(victim.front_end)
    begin_s = time.perf_counter()
    async with victim.channel() as channel:
        stub = InferenceServiceStub(channel)
        await asyncio.gather(*(ask_on(stub) for _ in range(num_at_a_time)))
    whole_s = time.perf_counter() - begin_s
    return Pace(
        requests_per_s=num_requests / whole_s,
        p99_s=statistics.quantiles(waits_s, n=100, method="inclusive")[-1],
        cpu_s=(whole_cpu_time_ns(victim.front_end) - cpu_ns) / 1e9,
    )


def _request() -> GenerateRequest:
    stop = StopConditions(max_output_tokens=_OUTPUT_TOKENS, ignore_eos=True)
    return GenerateRequest(prompt=Prompt(text="one two three"), config=GenerationConfig(stop=stop))


async def measure_rounds(servers: Sequence[Served], plan: Plan) -> None:
    """Lets servers take turns, behind one round that nobody counts."""
    for number in range(plan.num_rounds + 1):
        first = number % len(servers)
        order = [*servers[first:], *servers[:first]]
        for server in order if number % 2 else reversed(order):
            pace = await run_load(server.victim, plan.num_requests, plan.num_at_a_time)
            if number:
                server.paces.append(pace)
            held_bytes = memory_bytes(server.victim.front_end)
            server.first_bytes = server.first_bytes or held_bytes
            server.growth_bytes = held_bytes - server.first_bytes
        print(f"round {number} of {plan.num_rounds}", file=sys.stderr)


async def end(server: Served) -> None:
    """Asks a server to end right behind requests, and notes how that went."""
    seen = await scrape(server.metrics_address)
    server.figures |= _spans(seen)
    if server.collector is not None and server.kind == TAKING:
        # What is counted later is only what comes then.
        num = round(server.figures["requests"])
        assert await asyncio.to_thread(server.collector.wait_for, num, _SPAN) == num
        await asyncio.to_thread(server.collector.forget)
    await run_load(server.victim, _NUM_LAST, _NUM_LAST)
    asked_s = time.monotonic()
    server.victim.stop()
    await server.victim.gone()
    server.end_s = time.monotonic() - asked_s
    lines = server.victim.log_path.read_text().splitlines()
    server.figures["warnings"] = sum("warning" in line or "error" in line for line in lines)
    server.figures["minutes"] = (time.monotonic() - server.begin_s) / 60
    if server.kind == TAKING and server.collector is not None:
        # What has not come when the server is gone does not come any more.
        server.figures["last_spans"] = server.collector.wait_for(0, _SPAN)


def _spans(seen: Scraped) -> dict[str, float]:
    return {
        "requests": seen.sum("antiphon_requests_total"),
        "spans_exported": seen.sum("antiphon_telemetry_spans_exported_total"),
        "spans_dropped": seen.sum("antiphon_telemetry_spans_dropped_total"),
        "failed_exports": seen.sum("antiphon_telemetry_failed_exports_total"),
    }


@asynccontextmanager
async def serving(directory: Path, settings: Sequence[str]) -> AsyncIterator[Victim]:
    """Serves until the block ends."""
    await asyncio.to_thread(directory.mkdir)
    checkpoint = save_hollow_checkpoint(directory / "model")
    behaviour = Behaviour(step_interval_s=_STEP_S, alphabet=[300, 301])
    own = [
        f"model.source={checkpoint}",
        f"telemetry.prometheus_listen=unix:{directory}/metrics.sock",
        f"telemetry.flush_limit_s={FLUSH_LIMIT_S}",
        f"telemetry.max_waiting_records={MAX_WAITING}",
        "telemetry.metrics_interval_s=1",
        *settings,
    ]
    engine = fake_engine_command(directory / "behaviour.json", behaviour)
    victim = await Victim.prepare(directory, own, engine)
    try:
        await victim.start()
        assert await victim.wait_up(), victim.log_path.read_text()[-2000:]
        yield victim
    finally:
        await victim.close()


async def measure_collectors(folder: Path, plan: Plan) -> tuple[dict[str, object], list[str]]:
    """Measures servers beside collectors; returns the figures and what does not hold."""
    servers = []
    async with AsyncExitStack() as stack:
        # Bound, and nobody listens: whoever connects is refused.
        nobody = stack.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))
        for kind in KINDS:
            collector, settings = None, []
            if kind in _MOODS:
                collector = stack.enter_context(collecting(_MOODS[kind], delay_s=_SLOW_S))
                settings = [f"telemetry.otlp_endpoint={collector.endpoint}"]
            elif kind == ABSENT:
                endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
                settings = [f"telemetry.otlp_endpoint={endpoint}"]
            begin_s = time.monotonic()
            victim = await stack.enter_async_context(serving(folder / kind, settings))
            servers.append(Served(kind=kind, victim=victim, collector=collector, begin_s=begin_s))
        await measure_rounds(servers, plan)
        for server in servers:
            await end(server)
    return told(servers), faults_of(servers)


async def measure_strangers(folder: Path, plan: Plan) -> tuple[dict[str, object], list[str]]:
    """Measures a server that callers with names of their own come to."""
    async with serving(folder / "strangers", []) as victim, victim.channel() as channel:
        address = SocketAddress(str(victim.directory / "metrics.sock"))
        # What each kind brings about once, and what the process keeps from its first calls.
        await call_all(channel, range(100))
        before = await scrape(address)
        before_bytes = memory_bytes(victim.front_end)
        await call_all(channel, range(100, 100 + plan.num_strangers))
        after = await scrape(address)
        growth_bytes = memory_bytes(victim.front_end) - before_bytes
        num_calls = plan.num_strangers * len(strangers(channel))
    num_new = len(after.series) - len(before.series)
    faults = []
    if num_new > MAX_NEW_SERIES:
        faults.append(f"strangers: {num_new} new series")
    if growth_bytes > MAX_GROWTH_BYTES:
        faults.append(f"strangers: {growth_bytes >> 20} MiB more")
    figures = {
        "calls": num_calls,
        "new_series": num_new,
        "series": len(after.series),
        "growth_mib": round(growth_bytes / (1 << 20), 1),
    }
    return figures, faults


async def measure(folder: Path, plan: Plan) -> tuple[dict[str, object], list[str]]:
    """Measures everything."""
    collectors, faults = await measure_collectors(folder, plan)
    print("strange callers ...", file=sys.stderr)
    strange, more_faults = await measure_strangers(folder, plan)
    figures = {
        "num_cpus": len(os.sched_getaffinity(0)),
        "requests": plan.num_rounds * plan.num_requests,
        "rounds": plan.num_rounds,
        **collectors,
        "strangers": strange,
    }
    return figures, [*faults, *more_faults]


def main() -> int:
    """Measures, and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=10, help="of all servers (10)")
    parser.add_argument("--requests", type=int, default=200, help="a round (200)")
    parser.add_argument("--streams", type=int, default=32, help="at a time (32)")
    parser.add_argument("--strangers", type=int, default=2000, help="of each of five kinds (2000)")
    parser.add_argument(
        "--strict",
        action="store_true",
        help=f"end with 1 where collectors cost over {MAX_SLOWER_PCT:g} % of throughput or delay",
    )
    arguments = parser.parse_args()
    plan = Plan(
        num_rounds=arguments.rounds,
        num_requests=arguments.requests,
        num_at_a_time=arguments.streams,
        num_strangers=arguments.strangers,
    )
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        figures, faults = asyncio.run(measure(Path(folder), plan))
    slower = figures["slowed"]
    assert isinstance(slower, list)
    if arguments.strict:
        faults += slower
    for fault in faults:
        print(f"wrong: {fault}", file=sys.stderr)
    print(json.dumps(figures))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
