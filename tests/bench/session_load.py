"""The load of `sessions.py`: many streams in a process of its own, on the raw stubs.

Says `ready` once its streams are open, begins at a line on standard input, and prints one JSON
object at the end: how many tokens came, and how late, as counts of tenths of a millisecond.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon_server.event_loop import new_event_loop
from support.step_clock import StepClock

CHARACTERS_PER_TOKEN = 4
NUM_BINS = 100_000
_STREAMS_PER_CONNECTION = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one process does."""

    target: str
    clock: StepClock
    first_seed: int
    num_streams: int
    num_tokens: int
    num_skipped: int
    """The first tokens of each stream, which don't count: all streams begin at once."""


@dataclass(slots=True)
class Delays:
    """How late tokens came, in tenths of a millisecond."""

    counts: "array[int]" = field(default_factory=lambda: array("Q", bytes(8 * NUM_BINS)))
    num_messages: int = 0
    cpu_s: float = 0.0
    """What this process spent on it."""

    def add(self, delay_ns: int) -> None:
        """Counts a token."""
        self.counts[min(max(0, delay_ns) // 100_000, NUM_BINS - 1)] += 1


class Stream:
    """One conversation of one long turn."""

    def __init__(
        self, stub: session_pb2_grpc.SessionServiceStub, load: Load, seed: int, delays: Delays
    ) -> None:
        self._call = stub.Converse()
        self._load = load
        self._seed = seed
        self._delays = delays

    async def open(self) -> None:
        """Opens a new session."""
        create = session_pb2.CreateSessionRequest(session_id=f"load-{self._seed}")
        opening = session_pb2.OpenSession(create=create)
        await self._call.write(session_pb2.ConverseRequest(open=opening))
        frame = await self._call.read()
        assert frame.HasField("opened"), frame

    async def run(self) -> None:
        """Runs the turn and notes when its tokens come."""
        await self._call.write(session_pb2.ConverseRequest(generate=self._turn()))
        num_characters = num_tokens = 0
        clock, seed, delays = self._load.clock, self._seed, self._delays
        num_skipped = self._load.num_skipped
        while True:
            event = (await self._call.read()).turn_event
            now_ns = time.monotonic_ns()
            text = event.delta.text
            if text:
                delays.num_messages += 1
                num_characters += len(text)
                earlier, num_tokens = num_tokens, num_characters // CHARACTERS_PER_TOKEN
                for number in range(max(earlier, num_skipped) + 1, num_tokens + 1):
                    delays.add(now_ns - clock.end_ns(seed, number))
            elif event.HasField("completed"):
                break
            elif event.HasField("failed"):
                sys.exit(f"a turn failed: {event.failed}")
        assert num_tokens == self._load.num_tokens, (num_tokens, self._load.num_tokens)
        await self._call.done_writing()

    def _turn(self) -> session_pb2.StartTurn:
        message = types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text="Write down every number.")
        config = types_pb2.GenerationConfig(
            sampling=types_pb2.SamplingParams(seed=self._seed),
            stop=types_pb2.StopConditions(max_output_tokens=self._load.num_tokens),
        )
        return session_pb2.StartTurn(items=[types_pb2.Item(message=message)], config=config)


async def put_under_load(load: Load) -> Delays:
    """Opens the streams, waits for a line, and runs their turns side by side."""
    delays = Delays()
    num_connections = -(-load.num_streams // _STREAMS_PER_CONNECTION)
    channels = [
        grpc.aio.insecure_channel(load.target, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(num_connections)
    ]
    stubs = [session_pb2_grpc.SessionServiceStub(channel) for channel in channels]
    streams = [
        Stream(stubs[i % num_connections], load, load.first_seed + i, delays)
        for i in range(load.num_streams)
    ]
    for start in range(0, len(streams), 32):
        await asyncio.gather(*(stream.open() for stream in streams[start : start + 32]))
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    start_s = time.process_time()
    await asyncio.gather(*(stream.run() for stream in streams))
    delays.cpu_s = time.process_time() - start_s
    for channel in channels:
        await channel.close()
    return delays


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--clock", type=Path, required=True)
    for name in ("first-seed", "num-streams", "num-tokens", "num-skipped"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = vars(parser.parse_args(arguments))
    load = Load(**{**options, "clock": StepClock(options["clock"])})
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        delays = runner.run(put_under_load(load))
    counts = {place: number for place, number in enumerate(delays.counts) if number}
    told = {"num_messages": delays.num_messages, "cpu_s": delays.cpu_s, "counts": counts}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
