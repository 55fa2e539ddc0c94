"""Measures what constraints cost a server over the wire, and whether their outputs hold them.

Three parts, each with the default model unless another is named:

- cost: batches of streams with and without a constraint in turn, of equal length; the server's time
  on all cores for a thousand tokens, front end, checker and engine together.
- hostile: unconstrained streams while constraints come that ask for endless work, ordinary ones
  between them; how much longer than beside those anyone waits for a token. The bar is one step,
  such as most gaps are, and 20 ms.
- truth: requests of varied schemas at temperature 1; each that ends by itself is validated by
  something that knows nothing of grammars.

Prints a table, and as the last line one JSON object.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.v1 import types_pb2

from antiphon_client import Client
from bench.guided_streams import Streamed, server_cpu_s, stream, streams
from bench.hostile_constraints import hostile_constraints
from bench.serving import Prompts, fixed_length, started_server
from support.json_spellings import Json, Spelling, write
from support.random_schemas import SchemaMaker
from support.schema_cases import read_maskbench
from support.schema_oracle import SchemaOracle, Undecidable

PARTS = ("cost", "hostile", "truth")
LIMIT_S = 300.0
WATCH_S = 3600.0
OWN_CASES = Path(__file__).parents[1] / "data" / "grammar_cases.jsonl"
Figures = dict[str, float]
_STOP = "FINISH_REASON_STOP"
_PLAIN_EBNF = types_pb2.Constraint(ebnf="root ::= [a-z]+")

# Long enough never to end within a stream, and as callers write them.
LONG_SCHEMAS: Sequence[Json] = (
    {
        "type": "array",
        "minItems": 200,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "tags": {"type": "array", "items": {"enum": ["new", "old", "late"]}, "maxItems": 3},
            },
            "required": ["name", "age", "tags"],
            "additionalProperties": False,
        },
    },
    {
        "type": "array",
        "minItems": 200,
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
                "score": {"type": "number"},
                "note": {"type": ["string", "null"]},
            },
            "required": ["id", "score"],
            "additionalProperties": False,
        },
    },
    {"type": "array", "minItems": 200, "items": {"type": "string", "minLength": 5}},
    {
        "type": "array",
        "minItems": 200,
        "items": {
            "anyOf": [
                {"type": "integer"},
                {"type": "object", "properties": {"at": {"type": "string", "format": "date"}}},
            ]
        },
    },
)


def sampled(num_tokens: int, schema: Json, seed: int) -> types_pb2.GenerationConfig:
    """Returns temperature 1 under a schema, of at most so many tokens."""
    return types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(temperature=1, repetition_penalty=1, seed=seed),
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens),
        constraint=types_pb2.Constraint(json_schema=write(schema, Spelling())),
    )


def free(num_tokens: int, seed: int) -> types_pb2.GenerationConfig:
    """Returns temperature 1 without a constraint, of exactly so many tokens."""
    config = fixed_length(num_tokens)
    config.sampling.temperature = 1
    config.sampling.seed = seed
    return config


async def measure_cost(client: Client, prompts: Prompts, args: argparse.Namespace) -> Figures:
    """Returns what a constraint adds to the time of a thousand tokens, as a share of it."""
    ratios, per_thousand = [], {"free": list[float](), "guided": list[float]()}
    for pair in range(-1, args.pairs):  # the first one warms up
        costs = {}
        for kind in ("free", "guided") if pair % 2 else ("guided", "free"):
            texts = [await prompts.tokens(32) for _ in range(args.streams)]
            configs = [
                free(args.tokens, seed)
                if kind == "free"
                else sampled(args.tokens, LONG_SCHEMAS[seed % len(LONG_SCHEMAS)], seed)
                for seed in range(args.streams)
            ]
            before_s = server_cpu_s()
            done = await streams(client, texts, configs, LIMIT_S)
            num_tokens = sum(each.num_tokens for each in done)
            assert num_tokens == args.streams * args.tokens, [(e.end, e.message) for e in done]
            costs[kind] = (server_cpu_s() - before_s) / num_tokens * 1e3
        print(f"pair {pair}: " + ", ".join(f"{each} {costs[each]:.3f} s" for each in costs))
        if pair >= 0:
            ratios.append(costs["guided"] / costs["free"] - 1)
            for kind, cost in costs.items():
                per_thousand[kind].append(cost)
    return {
        "guided_overhead": round(statistics.median(ratios), 4),
        "guided_overhead_min": round(min(ratios), 4),
        "guided_overhead_max": round(max(ratios), 4),
        "free_cpu_s_per_1000": round(statistics.median(per_thousand["free"]), 3),
        "guided_cpu_s_per_1000": round(statistics.median(per_thousand["guided"]), 3),
    }


async def measure_hostile(client: Client, prompts: Prompts, args: argparse.Namespace) -> Figures:
    """Returns how much longer streams wait for a token beside hostile constraints."""
    # The engine and the checkers load their libraries beside the first streams; that is no
    # constraint's doing.
    for first in (sampled(4, LONG_SCHEMAS[0], 1), _held_to(_PLAIN_EBNF)):
        await stream(client, await prompts.tokens(32), first, LIMIT_S)
    lines = [Streamed() for _ in range(4)]
    watched = [
        asyncio.create_task(
            stream(client, await prompts.tokens(32), free(args.watched_tokens, 1), WATCH_S, line)
        )
        for line in lines
    ]
    spans = []
    for name, constraint in _in_turn():
        begin_s = time.monotonic()
        done = await stream(
            client, await prompts.tokens(32), _held_to(constraint), args.hostile_limit_s
        )
        spans.append((name, begin_s, time.monotonic(), done))
        if any(task.done() for task in watched):
            sys.exit("the watched streams ended before all constraints came: --watched-tokens")
    for task in watched:
        task.cancel()
    await asyncio.gather(*watched, return_exceptions=True)
    ordinary_s, hostile_s = list[float](), list[float]()
    for name, begin_s, end_s, done in spans:
        gaps_s = [gap for line in lines for gap in line.gaps_s(begin_s, end_s)]
        print(f"{name:32} {max(gaps_s, default=0.0) * 1e3:8.1f} ms  {done.end} {done.message[:90]}")
        (ordinary_s if name == "ordinary" else hostile_s).extend(gaps_s)
    figures = {}
    for kind, all_s in (("ordinary", ordinary_s), ("hostile", hostile_s)):
        figures[f"p50_gap_beside_{kind}_ms"] = round(_percentile(all_s, 0.5) * 1e3, 1)
        figures[f"p99_gap_beside_{kind}_ms"] = round(_percentile(all_s, 0.99) * 1e3, 1)
        figures[f"longest_gap_beside_{kind}_ms"] = round(max(all_s) * 1e3, 1)
    figures["hostile_delay_ms"] = round((max(hostile_s) - max(ordinary_s)) * 1e3, 1)
    figures["hostile_delay_bar_ms"] = round(_percentile(ordinary_s, 0.5) * 1e3 + 20, 1)
    return figures


def _in_turn() -> Iterator[tuple[str, types_pb2.Constraint]]:
    """Yields hostile constraints and an ordinary one for each two of them, in the same minutes."""
    ordinary = itertools.cycle(LONG_SCHEMAS)
    for number, each in enumerate(hostile_constraints()):
        if number % 2 == 0:
            yield "ordinary", sampled(32, next(ordinary), 1).constraint
        yield each


def _held_to(constraint: types_pb2.Constraint) -> types_pb2.GenerationConfig:
    config = sampled(32, True, 1)
    config.constraint.CopyFrom(constraint)
    return config


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


async def measure_truth(client: Client, args: argparse.Namespace) -> Figures:
    """Returns of how many outputs all are what their schemas allow."""
    ends, wrong, told = Counter[str](), 0, random.Random(args.seed)
    schemas = _varied_schemas(args.cases, told)
    while ends[_STOP] < args.requests:
        some = [next(schemas) for _ in range(16)]
        prompts = [f"Write JSON for {write(each, Spelling())[:400]}" for each in some]
        configs = [sampled(args.truth_tokens, each, told.randrange(2**32)) for each in some]
        done_all = await streams(client, prompts, configs, LIMIT_S)
        for schema, done in zip(some, done_all, strict=True):
            ends[done.end] += 1
            if done.end == _STOP and not SchemaOracle(schema).accepts_text(done.text):
                wrong += 1
                print(f"{done.text} violates {write(schema, Spelling())}")
    print(", ".join(f"{count} {end or 'nothing'}" for end, count in ends.most_common()))
    refused = ends["UNSUPPORTED_CONSTRAINT"] + ends["CONSTRAINT_TOO_COMPLEX"]
    cut = ends["FINISH_REASON_MAX_OUTPUT_TOKENS"]
    failed = ends.total() - ends[_STOP] - refused - cut
    return {
        "truth_ended": ends[_STOP],
        "truth_invalid": wrong,
        "truth_cut": cut,
        "truth_refused": refused,
        "truth_failed": failed,
    }


def _varied_schemas(path: Path, chooser: random.Random) -> Iterator[Json]:
    """Yields schemas without end: of a file and random ones, such as can be validated."""
    of_file = [case.schema for case in read_maskbench(path)]
    while True:
        for schema in (chooser.choice(of_file), SchemaMaker(chooser).make()):
            with contextlib.suppress(Undecidable):
                SchemaOracle(schema)
                yield schema


async def measure(target: str, args: argparse.Namespace) -> Figures:
    """Measures the parts that were asked for."""
    figures: Figures = {}
    async with Client(target) as client:
        prompts = Prompts(client, args.seed)
        if "cost" in args.parts:
            figures |= await measure_cost(client, prompts, args)
        if "hostile" in args.parts:
            figures |= await measure_hostile(client, prompts, args)
        if "truth" in args.parts:
            figures |= await measure_truth(client, args)
    return figures


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo", help="what to serve (default: demo)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--pairs", type=int, default=10, help="of batches, guided and free (10)")
    parser.add_argument("--streams", type=int, default=16, help="of a batch (16)")
    parser.add_argument("--tokens", type=int, default=64, help="of each of its streams (64)")
    parser.add_argument("--watched-tokens", type=int, default=4000, help="of those that wait")
    parser.add_argument("--hostile-limit-s", type=float, default=30, help="for one constraint")
    parser.add_argument("--requests", type=int, default=200, help="that end by themselves (200)")
    parser.add_argument("--truth-tokens", type=int, default=200, help="of each, at most (200)")
    parser.add_argument("--cases", type=Path, default=OWN_CASES, help="schemas in lines")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with started_server(args.model, args.set, 900) as target:
        figures = asyncio.run(measure(target, args))
    for name, figure in figures.items():
        print(f"{name:32} {figure}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
