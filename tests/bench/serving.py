"""Measures a server over the wire: time to first token and tokens per second.

Starts one on free ports with the default model, or takes a running one with --target. Every prompt
is new to the server, so that no stream profits from another's cache; outputs are greedy and of
fixed length. Prints a table, and as the last line one JSON object.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon.v1 import types_pb2

from antiphon_client import Client, NotReachable, Unavailable, raw_tokens

WORDS = [
    "river",
    "stone",
    "lamp",
    "north",
    "garden",
    "copper",
    "window",
    "market",
    "letter",
    "winter",
    "engine",
    "harbour",
    "field",
    "music",
    "paper",
    "bridge",
    "silver",
    "orchard",
    "signal",
    "thunder",
    "valley",
    "mirror",
    "captain",
    "forest",
    "candle",
    "station",
    "island",
    "ribbon",
    "anchor",
    "meadow",
    "shadow",
    "kitchen",
    "compass",
    "hammer",
    "library",
    "pocket",
]


@dataclass(frozen=True, kw_only=True)
class StreamFigures:
    """Medians over the repeats."""

    num_streams: int
    first_token_s: float
    slowest_first_token_s: float
    tokens_per_s: float
    """All output tokens by the time from the first request to the last token."""
    decode_tokens_per_s: float
    """Of one stream, behind its first token."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured."""

    model: str
    dtype: str
    num_cpus: int
    prompt_tokens: int
    output_tokens: int
    streams: list[StreamFigures]
    prefill_tokens: int
    prefill_tokens_per_s: float
    second_turn_context_tokens: int
    second_turn_cached_tokens: int
    second_turn_first_token_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure."""

    streams: Sequence[int]
    repeats: int
    prompt_tokens: int
    output_tokens: int
    prefill_tokens: int


@dataclass(frozen=True)
class Timed:
    """One stream: when it began, had its first token and ended, on the monotonic clock."""

    begin_s: float
    first_s: float
    end_s: float
    num_tokens: int


class Prompts:
    """Prompts of words, each of which the server has not seen."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)

    def words(self, num_words: int) -> str:
        """Returns so many words."""
        return " ".join(self._random.choice(WORDS) for _ in range(num_words))

    async def tokens(self, num_tokens: int) -> types_pb2.Prompt:
        """Returns a prompt of exactly so many tokens."""
        token_ids = await self._client.tokenize(self.words(num_tokens))
        return raw_tokens(token_ids[:num_tokens])


def fixed_length(num_tokens: int) -> types_pb2.GenerationConfig:
    """Returns greedy decoding of exactly so many tokens."""
    return types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(temperature=0, repetition_penalty=1),
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
    )


async def time_stream(client: Client, prompt: types_pb2.Prompt, num_tokens: int) -> Timed:
    """Runs one generation and returns its times."""
    begin_s, first_s = time.monotonic(), 0.0
    stream = client.stream_generate(prompt, fixed_length(num_tokens))
    async for event in stream:
        if event.HasField("delta") and not first_s:
            first_s = time.monotonic()
    end_s = time.monotonic()
    assert stream.completed is not None, "a stream ends with `completed`"
    return Timed(begin_s, first_s or end_s, end_s, stream.completed.usage.output_tokens)


async def measure_streams(client: Client, prompts: Prompts, plan: Plan, num: int) -> StreamFigures:
    """Runs `num` streams at a time, again and again."""
    rounds = []
    for _ in range(plan.repeats):
        texts = [await prompts.tokens(plan.prompt_tokens) for _ in range(num)]
        timed = await asyncio.gather(
            *(time_stream(client, text, plan.output_tokens) for text in texts)
        )
        rounds.append(timed)
    firsts = [[stream.first_s - stream.begin_s for stream in timed] for timed in rounds]
    return StreamFigures(
        num_streams=num,
        first_token_s=statistics.median(map(statistics.median, firsts)),
        slowest_first_token_s=statistics.median(map(max, firsts)),
        tokens_per_s=statistics.median(
            sum(s.num_tokens for s in timed)
            / (max(s.end_s for s in timed) - min(s.begin_s for s in timed))
            for timed in rounds
        ),
        decode_tokens_per_s=statistics.median(
            (s.num_tokens - 1) / (s.end_s - s.first_s) for timed in rounds for s in timed
        ),
    )


async def measure_prefill(client: Client, prompts: Prompts, plan: Plan) -> float:
    """Returns prompt tokens per second up to the first token of one stream."""
    rates = []
    for _ in range(plan.repeats):
        timed = await time_stream(client, await prompts.tokens(plan.prefill_tokens), 1)
        rates.append(plan.prefill_tokens / (timed.first_s - timed.begin_s))
    return statistics.median(rates)


async def measure_second_turns(
    client: Client, prompts: Prompts, plan: Plan
) -> tuple[int, int, float]:
    """Returns context and cached tokens of the second turns, and the time to their first token."""
    contexts, cached, firsts = [], [], []
    for _ in range(plan.repeats):
        async with client.new_session() as session:
            opening = f"Remember these words: {prompts.words(plan.prefill_tokens)}"
            await (await session.send(opening, fixed_length(16))).answer()
            begin_s = time.monotonic()
            turn = await session.send("Which was the first?", fixed_length(16))
            async for event in turn:
                if event.HasField("delta"):
                    firsts.append(time.monotonic() - begin_s)
                    break
            await turn.answer()
        assert turn.completed is not None, "a turn ends with `completed`"
        contexts.append(turn.completed.usage.prompt_tokens)
        cached.append(turn.completed.usage.cached_prompt_tokens)
        await client.sessions.delete(session.name)
    return (
        int(statistics.median(contexts)),
        int(statistics.median(cached)),
        statistics.median(firsts),
    )


async def measure(target: str, plan: Plan, seed: int) -> Figures:
    """Measures everything, after one generation that nobody counts."""
    async with Client(target) as client:
        model = await anext(client.list_models())
        prompts = Prompts(client, seed)
        await time_stream(client, await prompts.tokens(plan.prompt_tokens), 8)
        streams = []
        for num in plan.streams:
            print(f"measuring {num} streams ...", file=sys.stderr)
            streams.append(await measure_streams(client, prompts, plan, num))
        print("measuring prefill and second turns ...", file=sys.stderr)
        prefill = await measure_prefill(client, prompts, plan)
        context, cached, first_s = await measure_second_turns(client, prompts, plan)
        return Figures(
            model=model.name,
            dtype=model.dtype,
            num_cpus=len(os.sched_getaffinity(0)),
            prompt_tokens=plan.prompt_tokens,
            output_tokens=plan.output_tokens,
            streams=streams,
            prefill_tokens=plan.prefill_tokens,
            prefill_tokens_per_s=prefill,
            second_turn_context_tokens=context,
            second_turn_cached_tokens=cached,
            second_turn_first_token_s=first_s,
        )


def table(figures: Figures) -> Iterator[str]:
    """Yields the lines that people read."""
    yield f"{figures.model} in {figures.dtype}, {figures.num_cpus} CPUs; medians"
    yield "streams  first token  slowest first  tokens/s  tokens/s of one stream"
    for row in figures.streams:
        yield (
            f"{row.num_streams:>7}  {row.first_token_s * 1e3:>8.0f} ms"
            f"  {row.slowest_first_token_s * 1e3:>10.0f} ms"
            f"  {row.tokens_per_s:>8.1f}  {row.decode_tokens_per_s:>22.1f}"
        )
    yield f"prefill of {figures.prefill_tokens} tokens: {figures.prefill_tokens_per_s:.0f} tokens/s"
    yield (
        f"second turn: first token after {figures.second_turn_first_token_s * 1e3:.0f} ms, "
        f"{figures.second_turn_cached_tokens} of {figures.second_turn_context_tokens} "
        "context tokens reused"
    )


@dataclass(frozen=True, slots=True)
class StartedServer:
    """A server that answers."""

    target: str
    admin_target: str
    process_id: int


@contextmanager
def started_server(model: str, sets: Sequence[str], start_limit_s: float) -> Iterator[str]:
    """Starts a server on free ports and yields its target once it answers."""
    with started_process(model, sets, start_limit_s) as server:
        yield server.target


@contextmanager
def started_process(
    model: str, sets: Sequence[str], start_limit_s: float
) -> Iterator[StartedServer]:
    """Starts a server on free ports and yields it once it answers."""
    target, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "antiphon_cli.main", "serve", "--model", model]
        command += ["--listen", target, "--admin-listen", admin]
        command += ["--store", str(Path(folder, "sessions.db"))]
        command += [word for each in sets for word in ("--set", each)]
        process = subprocess.Popen(command, stdout=sys.stderr)
        try:
            asyncio.run(answers(target, process, start_limit_s))
            yield StartedServer(target, admin, process.pid)
        finally:
            process.terminate()
            process.wait(30)


async def answers(target: str, process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    """Waits until the server answers; leaves where it ended or took too long."""
    deadline_s = time.monotonic() + limit_s
    async with Client(target) as client:
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                sys.exit(f"the server ended with status {process.returncode}")
            try:
                await anext(client.list_models())
            except (NotReachable, Unavailable):
                await asyncio.sleep(0.2)
            else:
                return
    sys.exit(f"the server did not answer within {limit_s:g} s")


def free_ports(num: int) -> list[int]:
    """Returns ports of the loopback address that nobody listens on."""
    sockets = [socket.socket() for _ in range(num)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--target", help="measure this running server instead of starting one")
    parser.add_argument("--model", default="demo", help="what to serve (default: demo)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="a server setting"
    )
    parser.add_argument("--streams", default="1,4,16", help="numbers of streams (1,4,16)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="of each stream (32)")
    parser.add_argument("--output-tokens", type=int, default=128, help="of each stream (128)")
    parser.add_argument("--prefill-tokens", type=int, default=512, help="of the long prompt (512)")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the prompts' words")
    parser.add_argument("--start-limit-s", type=float, default=900, help="for the start (900)")
    return parser.parse_args()


def main() -> None:
    """Measures and prints."""
    arguments = parsed()
    plan = Plan(
        streams=[int(num) for num in arguments.streams.split(",")],
        repeats=arguments.repeats,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        prefill_tokens=arguments.prefill_tokens,
    )
    if arguments.target:
        figures = asyncio.run(measure(arguments.target, plan, arguments.seed))
    else:
        with started_server(arguments.model, arguments.set, arguments.start_limit_s) as target:
            figures = asyncio.run(measure(target, plan, arguments.seed))
    print("\n".join(table(figures)))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
