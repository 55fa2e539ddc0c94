"""Measures what tracing costs a server, and whether what it tells is what a client sees.

Three servers stand side by side with the default model: one without telemetry, one that sends a
span of everything to a collector in this process, and one whose collector is not there. They take
turns at the same load, in an order that changes, and their processes' time on the cores is
compared pair by pair. Then the traced one is asked for single answers, and what its spans say is
compared with the client's clock.

The last line is one JSON object: `overhead_pct` and `dead_collector_pct` are the medians over the
pairs and should be at most 2; `*_quartiles_pct` say how much the machine itself varies.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.serving import StartedServer, started_process
from bench.traced_calls import Asked, Load, ask, run_load, spans_of, warm_up
from support.otlp_sink import OtlpSink
from support.process_figures import whole_cpu_time_ns
from support.serve_command import children_of

OFF, TRACED, DEAD = "off", "traced", "dead"
KINDS = (OFF, TRACED, DEAD)
SPAN_LIMIT_S = 60.0
_SETTINGS = ("engine.kv_cache_tokens=8192", "constraints.load_at_start=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a server's processes used for a load, in seconds on a core for 1,000 tokens."""

    all_s: float
    front_end_s: float
    """The part of the process that makes and sends spans."""


Round = dict[str, Cost]
"""What each kind of server used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    num_pairs: int
    num_single: int
    load: Load


def overheads_pct(rounds: Sequence[Round], kind: str) -> list[float]:
    """Returns, for each round, how much more than the server without telemetry a server used."""
    return [100 * (costs[kind].all_s / costs[OFF].all_s - 1) for costs in rounds]


def order_of(number: int) -> list[str]:
    """Returns the order of the servers in a round: each is as often first and last."""
    first = number % len(KINDS)
    turned = [*KINDS[first:], *KINDS[:first]]
    return turned if number % 2 else turned[::-1]


def compared(asked: Sequence[Asked]) -> dict[str, object]:
    """Returns what clients and spans say of the same answers, in milliseconds."""
    client_ms = 1e3 * statistics.median(each.first_token_s for each in asked)
    server_ms = 1e3 * statistics.median(each.told_first_token_s for each in asked)
    gaps_ms = [1e3 * abs(each.last_token_s - each.told_phases_s) for each in asked]
    whole_ms = [1e3 * each.last_token_s for each in asked]
    num_agreeing = sum(
        gap_ms <= 0.05 * each_ms + 10 for gap_ms, each_ms in zip(gaps_ms, whole_ms, strict=True)
    )
    return {
        "requests": len(asked),
        "first_token_client_ms": round(client_ms, 2),
        "first_token_server_ms": round(server_ms, 2),
        "first_token_agrees": abs(client_ms - server_ms) <= 0.1 * server_ms + 2,
        "whole_client_ms": round(statistics.median(whole_ms), 2),
        "phases_gap_ms": round(statistics.median(gaps_ms), 2),
        "phases_agree_share": round(num_agreeing / len(asked), 3),
    }


def told(plan: Plan, rounds: Sequence[Round], single: Sequence[Asked]) -> dict[str, object]:
    """Returns what the last line says."""
    figures: dict[str, object] = {
        "num_cpus": len(os.sched_getaffinity(0)),
        "streams": plan.load.num_streams,
        "output_tokens": plan.load.output_tokens,
        "pairs": len(rounds),
    }
    for kind, name in ((TRACED, "overhead"), (DEAD, "dead_collector")):
        each_pct = overheads_pct(rounds, kind)
        low, middle, high = statistics.quantiles(each_pct, n=4, method="inclusive")
        figures[f"{name}_pct"] = round(middle, 2)
        figures[f"{name}_quartiles_pct"] = [round(low, 2), round(high, 2)]
    for name in ("all_s", "front_end_s"):
        figures[f"cpu_{name}_per_1000_tokens"] = {
            kind: round(statistics.median(getattr(costs[kind], name) for costs in rounds), 3)
            for kind in KINDS
        }
    return {**figures, "single": compared(single)}


def measured(server: StartedServer, load: Load) -> Cost:
    """Runs the load on a server and returns what its processes used for it."""
    processes = (server.process_id, *sorted(children_of(server.process_id)))
    before_ns = [whole_cpu_time_ns(each) for each in processes]
    num_tokens = asyncio.run(run_load(server.target, load))
    used_s = [
        (whole_cpu_time_ns(each) - since_ns) / 1e9
        for each, since_ns in zip(processes, before_ns, strict=True)
    ]
    per_thousand = 1000 / num_tokens
    return Cost(all_s=sum(used_s) * per_thousand, front_end_s=used_s[0] * per_thousand)


def measure(servers: dict[str, StartedServer], sink: OtlpSink, plan: Plan) -> dict[str, object]:
    """Measures everything, behind one round that nobody counts."""
    for server in servers.values():
        asyncio.run(warm_up(server.target, plan.load))
    rounds: list[Round] = []
    for number in range(plan.num_pairs):
        costs = {kind: measured(servers[kind], plan.load) for kind in order_of(number)}
        rounds.append(costs)
        pairs = (f"{kind} {overheads_pct([costs], kind)[0]:+.1f} %" for kind in (TRACED, DEAD))
        print(f"pair {number + 1} of {plan.num_pairs}: {', '.join(pairs)}", file=sys.stderr)
    print(f"asking for {plan.num_single} single answers ...", file=sys.stderr)
    calls = asyncio.run(ask(servers[TRACED].target, plan.num_single))
    single = [spans_of(call, sink, limit_s=SPAN_LIMIT_S) for call in calls]
    # Nothing was left out: what was measured is tracing at 100 %.
    num_calls = (plan.num_pairs + 1) * plan.load.num_streams + plan.num_single
    num_seen = sum(span.name.startswith("text_completion") for span in sink.spans)
    assert num_seen == num_calls, (num_seen, num_calls)
    return told(plan, rounds, single)


@contextmanager
def started(model: str, sink: OtlpSink, sets: Sequence[str]) -> Iterator[dict[str, StartedServer]]:
    """Starts the three servers."""
    with socket.socket() as nobody, ExitStack() as stack:
        # Bound, and nobody listens: whoever connects is refused.
        nobody.bind(("127.0.0.1", 0))
        endpoints = {
            OFF: "",
            TRACED: sink.endpoint,
            DEAD: f"http://127.0.0.1:{nobody.getsockname()[1]}",
        }
        servers = {}
        for kind in KINDS:
            print(f"starting the server of tracing {kind} ...", file=sys.stderr)
            own = [*_SETTINGS, f"telemetry.traces_endpoint={endpoints[kind]}", *sets]
            servers[kind] = stack.enter_context(started_process(model, own, start_limit_s=900))
        yield servers


def main() -> None:
    """Measures, and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="demo", help="what to serve (default: demo)")
    parser.add_argument("--pairs", type=int, default=10, help="rounds of all three (10)")
    parser.add_argument("--streams", type=int, default=16, help="at a time (16)")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="of each stream (32)")
    parser.add_argument("--output-tokens", type=int, default=32, help="of each stream (32)")
    parser.add_argument("--single", type=int, default=50, help="answers to compare (50)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    plan = Plan(
        num_pairs=arguments.pairs,
        num_single=arguments.single,
        load=Load(
            num_streams=arguments.streams,
            prompt_tokens=arguments.prompt_tokens,
            output_tokens=arguments.output_tokens,
        ),
    )
    with (
        OtlpSink().listening() as sink,
        started(arguments.model, sink, arguments.set) as servers,
    ):
        figures = measure(servers, sink, plan)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
