"""Runs a small random model at 0, 1 and 2 steps ahead and checks that it says the same each time.

Everything is on: greedy and seeded requests, penalties, log-probabilities, forced pauses, and a
pool so small that its blocks go through main memory. The last line is one JSON object: steps per
second of each depth, with the whole cache on the device and with the host's beside it. Ends with
an error where greedy tokens differ. Of those that are drawn it counts the requests that differ:
batches of other sizes round otherwise, and a draw that lies on the edge between two tokens falls on
either side.
Needs the engine's dependencies and transformers; `tests` and `engine` on PYTHONPATH.
"""

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.frames import encode_frame, front_end_reader
from antiphon_engine.api.messages import (
    Answer,
    CoreStats,
    GenerationRequest,
    ReadStats,
    RequestFailed,
    SamplingParams,
    StepNews,
    StopParams,
    Submit,
)
from antiphon_engine.api.process import EngineStart
from antiphon_engine.engine_process import loop_settings, make_parts
from antiphon_engine.link import FrontEndLink
from antiphon_engine.loading import load_model
from antiphon_engine.loop import EngineLoop
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts

BLOCK_TOKENS = 32
DEPTHS = (0, 1, 2)
NUM_WAVES = 3
"""The first warms up; the later ones find their prompts in the cache, on either tier."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one engine did with all waves."""

    tokens: dict[int, list[int]]
    num_steps: int
    """Of the timed waves."""
    wall_s: float
    stats: CoreStats

    @property
    def steps_per_s(self) -> float:
        return round(self.num_steps / self.wall_s, 1)


class Driver:
    """Drives a loop in this thread and keeps what it says unread until the clock has stopped."""

    def __init__(self, config: EngineConfig, checkpoint: Path) -> None:
        self._front_end, engine_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._front_end.setblocking(False)
        start = EngineStart(config=config, checkpoint=str(checkpoint))
        parts = make_parts(start, load_model(config, checkpoint))
        self._loop = EngineLoop(parts, FrontEndLink(engine_end), loop_settings(config))
        self._said: list[bytes] = []

    def run(self, requests: dict[int, GenerationRequest]) -> float:
        """Runs requests to their ends and returns how long that took."""
        for request_id, request in requests.items():
            self._front_end.sendall(encode_frame(Submit(request_id=request_id, request=request)))
        started = time.perf_counter()
        self._pass()
        while self._loop.busy:
            self._pass()
        return time.perf_counter() - started

    def hear(self) -> tuple[dict[int, list[int]], CoreStats]:
        """Returns every request's tokens, and the counters."""
        self._front_end.sendall(encode_frame(ReadStats(query_id=1)))
        self._pass()
        tokens: dict[int, list[int]] = defaultdict(list)
        stats: CoreStats | None = None
        for message in front_end_reader().feed(b"".join(self._said)):
            if isinstance(message, RequestFailed):
                raise SystemExit(f"request {message.request_id} failed: {message.message}")
            if isinstance(message, StepNews):
                rows = zip(
                    array("Q", message.request_ids), array("i", message.token_ids), strict=True
                )
                for request_id, token_id in rows:
                    tokens[request_id].append(token_id)
            if isinstance(message, Answer) and isinstance(message.value, CoreStats):
                stats = message.value
        assert stats is not None
        return tokens, stats

    def num_steps(self) -> int:
        return int(self._loop._core.stats()["step"])

    def _pass(self) -> None:
        self._loop.run_once()
        with contextlib.suppress(BlockingIOError):
            self._said.append(self._front_end.recv(1 << 22))


def make_requests(num: int, num_tokens: int) -> list[GenerationRequest]:
    """Greedy ones, and seeded ones with filters and penalties, on prompts that begin alike."""
    shared, *others = prompts(num + 1, least=100, most=200)
    requests = []
    for i, other in enumerate(others):
        drawn = SamplingParams(
            seed=i,
            temperature=0.8,
            top_p=0.9 if i % 4 == 1 else 1.0,
            top_k=50 if i % 8 == 1 else 0,
            repetition_penalty=1.3 if i % 4 == 3 else 1.0,
            frequency_penalty=0.4 if i % 4 == 3 else 0.0,
        )
        requests.append(
            GenerationRequest(
                prompt=array("i", [*shared[: 13 * (i % 7)], *other]).tobytes(),
                sampling=drawn if i % 2 else SamplingParams(seed=i, temperature=0.0),
                stop=StopParams(max_output_tokens=num_tokens),
                top_logprobs=2 if i % 5 == 0 else None,
            )
        )
    return requests


def run(config: EngineConfig, checkpoint: Path, requests: list[GenerationRequest]) -> Run:
    driver = Driver(config, checkpoint)
    num_steps, wall_s = 0, 0.0
    for wave in range(NUM_WAVES):
        steps_before = driver.num_steps()
        took_s = driver.run({wave * len(requests) + i: r for i, r in enumerate(requests)})
        if wave:
            num_steps += driver.num_steps() - steps_before
            wall_s += took_s
    tokens, stats = driver.hear()
    return Run(tokens, num_steps, wall_s, stats)


def num_drawn_otherwise(
    name: str, run: Run, expected: Run, requests: list[GenerationRequest]
) -> int:
    """Counts the drawn requests that differ; ends the program where a greedy one does."""
    num_other = 0
    for request_id in range(NUM_WAVES * len(requests)):
        index = request_id % len(requests)
        wanted = expected.tokens[index]
        if run.tokens[request_id] == wanted:
            continue
        if requests[index].sampling.temperature == 0:
            raise SystemExit(
                f"{name}: request {request_id} says {run.tokens[request_id]}, not {wanted}"
            )
        num_other += 1
    return num_other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=64)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    requests = make_requests(arguments.requests, arguments.output_tokens)
    whole = EngineConfig(
        device=arguments.device,
        dtype=arguments.dtype,
        block_tokens=BLOCK_TOKENS,
        max_rows=arguments.requests,
        max_step_tokens=1024,
        max_context_tokens=512,
        kv_cache_tokens=512 * arguments.requests,
        # Else a row's bits depend on how many rows there are, and how long.
        deterministic=arguments.device == "cuda",
    )
    # A quarter of what they need at once: the rest waits, or lies on the host.
    through_host = replace(
        whole, kv_cache_tokens=128 * arguments.requests, host_cache_bytes=1 << 28
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), TinyModel(dtype=torch.float32))
        print(f"torch {torch.__version__}, {arguments.device}, {arguments.dtype}", file=sys.stderr)
        figures: dict[str, object] = {
            "device": arguments.device,
            "dtype": arguments.dtype,
            "requests": arguments.requests,
        }
        expected: Run | None = None
        num_other = 0
        for name, config in (("whole", whole), ("through_host", through_host)):
            for depth in DEPTHS:
                done = run(replace(config, run_ahead=depth), checkpoint, requests)
                expected = expected or done
                num_other += num_drawn_otherwise(f"{name}, {depth} ahead", done, expected, requests)
                figures[f"{name}_steps_per_s_{depth}"] = done.steps_per_s
                print(f"{name}, {depth} ahead: {done.steps_per_s} steps/s", file=sys.stderr)
                if config is through_host:
                    assert done.stats.num_offloads_total, "nothing went to the host"
                    assert done.stats.num_onloads_total, "nothing came from the host"
                    figures[f"onloads_{depth}"] = done.stats.num_onloads_total
            for depth in DEPTHS:
                paused = replace(config, run_ahead=depth, fault_pause_every=7)
                done = run(paused, checkpoint, requests)
                assert done.stats.num_preemptions_total, "nobody was paused"
                assert expected is not None
                num_other += num_drawn_otherwise(
                    f"{name}, paused, {depth} ahead", done, expected, requests
                )
        figures["greedy_tokens_equal"] = True
        figures["drawn_requests_that_differ"] = num_other
        figures["drawn_requests"] = 4 * len(DEPTHS) * NUM_WAVES * (len(requests) // 2)
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
