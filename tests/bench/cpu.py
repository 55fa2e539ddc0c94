"""Measures the CPU engine beside what else serves the default model on a CPU.

Parts, `speed` and `ceilings` unless told otherwise:

- speed: Antiphon and the peers that are installed (`make bench-peers`), all up at once, each figure
  of one and then of the next, in rounds: prefill of 512 tokens, decode at 1, 4 and 16 streams (all
  streams together, from when each has its first token), the time to the first token of a second
  turn behind 1,000 tokens, start to ready, and the peak of the memory of all processes (PSS) while
  an engine starts and runs in. Servers are asked over the wire, libraries in their own process.
- ceilings: what the machine's memory and its arithmetic can do, and the share that Antiphon gets.
- quality: how often each form of weights has the same likeliest token as float32.
- reuse: the time to a second turn's first token behind 1,000 tokens that are in the KV cache, in
  the host's tier, or nowhere.
- path: what gRPC and the front end cost, as processor time for 1,000 tokens at 16 streams.

Prints tables, and as the last line one JSON object.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon_engine.cpu_topology import num_physical_cores
from bench.cpu_peers import ceilings, path_cost, quality, reuse
from bench.cpu_peers.catalog import DEFAULT, ENGINES, Engine, Machine
from bench.cpu_peers.measuring import Plan, SideBySide
from bench.cpu_peers.memory_bar import memory_lines
from bench.cpu_peers.places import Places
from bench.cpu_peers.plot import write_plot
from bench.cpu_peers.prompts import Prompts, text_ids
from bench.cpu_peers.tables import speed_table
from support.default_model import default_checkpoint

PARTS = ("speed", "ceilings", "quality", "reuse", "path")
_REUSE_ROUNDS = 7
Results = dict[str, Any]


def chosen_engines(asked: str, places: Places) -> list[Engine]:
    """Returns the engines to measure; those that nobody named and aren't installed are left out."""
    names = asked.split(",") if asked else list(DEFAULT)
    if unknown := [name for name in names if name not in ENGINES]:
        sys.exit(f"--engines: unknown {', '.join(unknown)}; known: {', '.join(ENGINES)}")
    found = []
    for engine in (ENGINES[name] for name in names):
        if engine.needs(places).exists():
            found.append(engine)
        elif asked:
            sys.exit(f"{engine.name} is not installed in {places.root}: make bench-peers")
        else:
            print(f"{engine.name} is not installed: left out", file=sys.stderr)
    return found


def measure_speed(arguments: argparse.Namespace, machine: Machine) -> Results:
    """Runs the rounds, prints the table and writes the plot."""
    plan = Plan(
        num_rounds=1 if arguments.quick else arguments.rounds,
        output_tokens=16 if arguments.quick else 128,
        limit_s=arguments.limit_s,
    )
    engines = chosen_engines(arguments.engines, machine.places)
    side_by_side = SideBySide(machine, plan, Prompts(text_ids(machine.checkpoint), arguments.seed))
    side_by_side.measure(engines)
    print("\n".join(speed_table(engines, side_by_side.figures)))
    print("\n".join(memory_lines(engines, side_by_side.figures, machine)))
    figures = {
        name: {"failure": each.failure} if each.failure else each.medians()
        for name, each in side_by_side.figures.items()
    }
    if arguments.plot:
        write_plot(Path(arguments.plot), figures)
    shares = side_by_side.foreign.shares
    return {
        "num_rounds": side_by_side.num_rounds,
        "others_share_max": round(max(shares, default=0.0), 3),
        "engines": figures,
    }


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", default="", help=f"which, of {', '.join(ENGINES)}")
    parser.add_argument("--parts", default="speed,ceilings", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="one short round, for a look")
    parser.add_argument("--rounds", type=int, default=3, help="at most (3)")
    parser.add_argument("--limit-s", type=float, default=600, help="for starts and rounds (600)")
    parser.add_argument("--pairs", type=int, default=10, help="of the part path (10)")
    parser.add_argument("--peers", type=Path, default=Places.default_root(), metavar="DIRECTORY")
    parser.add_argument("--threads", type=int, default=0, help="of each engine; 0: one a core")
    parser.add_argument("--kernels", default="auto", help="Antiphon's engine.cpu_kernels (auto)")
    parser.add_argument("--plot", default="", metavar="FILE.svg", help="where to draw the figures")
    parser.add_argument("--start-limit-s", type=float, default=600, help="of one engine (600)")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the prompts")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"--parts: unknown {', '.join(unknown)}; known: {', '.join(PARTS)}")
    return arguments


def main() -> int:
    """Measures, prints, and returns 1 where an engine failed."""
    arguments = parsed()
    machine = Machine(
        places=Places(arguments.peers.resolve()),
        checkpoint=default_checkpoint(),
        num_threads=arguments.threads or num_physical_cores(),
        start_limit_s=arguments.start_limit_s,
        kernels=arguments.kernels,
    )
    results: Results = {"num_cpus": len(os.sched_getaffinity(0)), "threads": machine.num_threads}
    if "speed" in arguments.parts:
        results |= measure_speed(arguments, machine)
    if "ceilings" in arguments.parts:
        results["ceilings"] = ceilings.measure(machine, results.get("engines", {}))
    if "quality" in arguments.parts:
        results["quality"] = quality.measure(machine, quick=arguments.quick)
    if "reuse" in arguments.parts:
        num_rounds = 1 if arguments.quick else _REUSE_ROUNDS
        results["reuse"] = reuse.measure(machine, num_rounds)
    if "path" in arguments.parts:
        num_pairs = 1 if arguments.quick else arguments.pairs
        results["path"] = path_cost.measure(machine, num_pairs, quick=arguments.quick)
    print(json.dumps(results))
    return int(any("failure" in each for each in results.get("engines", {}).values()))


if __name__ == "__main__":
    sys.exit(main())
