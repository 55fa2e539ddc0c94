"""Measures what a tenant can feel of another's prompt: time to first token, cold and cached.

Starts a server with a tokens file on a free port. In each repeat tenant A sends a new prompt
(cold), B sends the same one, and A sends it again; and A sends another new one, so that cold
prompts are measured beside each. The last line is one JSON object: `other_by_cold` should be
about 1, since B feels nothing of A, and `own_by_cold` well below.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from antiphon.v1 import inference_pb2, inference_pb2_grpc
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, StopConditions, TokenIds

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.tenants import bearer, token_entry, write_tokens

LIMIT_S = 300.0
A, B = "tk-a", "tk-b"


@dataclass(slots=True)
class Figures:
    """Times to first token, in seconds, and cached tokens."""

    cold_s: list[float] = field(default_factory=list)
    other_s: list[float] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)
    other_cached: int = 0


@contextmanager
def server(model: str, settings: list[str]) -> Iterator[str]:
    """Serves the model to tenants A and B; yields the address."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        tokens = write_tokens(folder / "tokens.toml", token_entry(A, "a"), token_entry(B, "b"))
        words = [
            *(sys.executable, "-m", "antiphon_cli.main", "serve", "--model", model),
            *("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
            *("--store", str(folder / "sessions.db"), "--set", f"server.tokens_file={tokens}"),
            *(word for each in settings for word in ("--set", each)),
        ]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rpartition(" ")[2]
        finally:
            process.terminate()
            process.wait()


async def first_token(
    stub: inference_pb2_grpc.InferenceServiceStub, ids: list[int], token: str
) -> tuple[float, int]:
    """Returns the time to the first token, and how much of the prompt was cached."""
    request = inference_pb2.GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=ids)),
        config=GenerationConfig(stop=StopConditions(max_output_tokens=1)),
    )
    start_s = time.perf_counter()
    took_s, num_cached = 0.0, 0
    async for event in stub.StreamGenerate(request, metadata=bearer(token), timeout=LIMIT_S):
        if event.HasField("delta") and not took_s:
            took_s = time.perf_counter() - start_s
        if event.HasField("completed"):
            num_cached = event.completed.usage.cached_prompt_tokens
    return took_s or time.perf_counter() - start_s, num_cached


async def measure(target: str, *, num_repeats: int, prompt_tokens: int) -> Figures:
    """Runs the repeats behind one that warms the server up."""
    figures, draw = Figures(), random.Random(1)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for repeat in range(num_repeats + 1):
            ids, more = ([draw.randrange(50, 900) for _ in range(prompt_tokens)] for _ in "ab")
            cold_s, _ = await first_token(stub, ids, A)
            other_s, other_cached = await first_token(stub, ids, B)
            again_s, _ = await first_token(stub, more, A)
            own_s, own_cached = await first_token(stub, ids, A)
            assert own_cached > prompt_tokens // 2
            figures.other_cached = max(figures.other_cached, other_cached)
            if repeat:
                figures.cold_s += (cold_s, again_s)
                figures.other_s.append(other_s)
                figures.own_s.append(own_s)
    return figures


def main() -> None:
    """Measures, and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    with server(arguments.model, arguments.set) as target:
        figures = asyncio.run(
            measure(target, num_repeats=arguments.repeats, prompt_tokens=arguments.prompt_tokens)
        )
    cold_s = statistics.median(figures.cold_s)
    told = {
        "prompt_tokens": arguments.prompt_tokens,
        "repeats": arguments.repeats,
        "cold_s": round(cold_s, 4),
        "other_by_cold": round(statistics.median(figures.other_s) / cold_s, 3),
        "own_by_cold": round(statistics.median(figures.own_s) / cold_s, 3),
        "other_cached_tokens": figures.other_cached,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
