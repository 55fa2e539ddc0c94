"""The load of `sessions.py`: many streams in a process of its own, which takes little of the time.

Says `ready` once its streams are open, begins at a line on standard input, and prints one JSON
object at the end: when its tokens were made, and how late each came.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from antiphon.v1 import session_pb2, types_pb2

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon_server.event_loop import new_event_loop
from bench.http2_calls import Connection
from support.process_figures import main_thread_time
from support.step_clock import StepClock

CHARACTERS_PER_TOKEN = 4
_STREAMS_PER_CONNECTION = 64
_OPENING_S = 60.0
_CONVERSE = "/antiphon.v1.SessionService/Converse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one process does."""

    target: str
    clock: StepClock
    first_seed: int
    num_streams: int
    num_tokens: int


@dataclass(slots=True)
class Delays:
    """How late tokens came."""

    made_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """When the step ended that brought each."""
    late_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """How much later it was there."""
    num_messages: int = 0
    cpu_s: float = 0.0
    """What this process spent on it."""
    wait_s: float = 0.0
    """How long it was ready for more and had no core."""

    def add(self, made_ns: int, now_ns: int) -> None:
        """Counts a token."""
        self.made_ns.append(made_ns)
        self.late_ns.append(now_ns - made_ns)


class Stream:
    """One conversation of one long turn."""

    def __init__(self, connection: Connection, load: Load, seed: int, delays: Delays) -> None:
        self._load = load
        self._seed = seed
        self._delays = delays
        self._num_characters = 0
        self._num_tokens = 0
        self.opened: Final = asyncio.Event()
        self.ended: Final = asyncio.Event()
        self._call = connection.call(_CONVERSE, self._take, self.ended.set)

    def open(self) -> None:
        """Opens a new session."""
        create = session_pb2.CreateSessionRequest(session_id=f"load-{self._seed}")
        opening = session_pb2.OpenSession(create=create)
        self._call.send(session_pb2.ConverseRequest(open=opening).SerializeToString())

    def run(self) -> None:
        """Starts the turn."""
        frame = session_pb2.ConverseRequest(generate=self._turn())
        self._call.send(frame.SerializeToString())

    def check(self) -> None:
        """Checks that all tokens came."""
        wanted = self._load.num_tokens
        assert self._num_tokens == wanted, (self._num_tokens, wanted)

    @property
    def lived_ns(self) -> tuple[int, int]:
        """When the steps of its first and its last token ended."""
        clock = self._load.clock
        return clock.end_ns(self._seed, 1), clock.end_ns(self._seed, self._load.num_tokens)

    def _take(self, message: bytes) -> None:
        """Notes when tokens come."""
        now_ns = time.monotonic_ns()
        frame = session_pb2.ConverseResponse.FromString(message)
        if text := frame.turn_event.delta.text:
            self._note(len(text), now_ns)
            return
        kind = frame.WhichOneof("frame")
        if kind == "opened":
            self.opened.set()
        elif frame.turn_event.HasField("completed"):
            self._call.end()
        elif kind != "turn_event" or frame.turn_event.HasField("failed"):
            sys.exit(f"a turn failed: {frame}")

    def _note(self, num_characters: int, now_ns: int) -> None:
        clock, seed, delays = self._load.clock, self._seed, self._delays
        delays.num_messages += 1
        self._num_characters += num_characters
        earlier, self._num_tokens = (
            self._num_tokens,
            self._num_characters // CHARACTERS_PER_TOKEN,
        )
        for number in range(earlier + 1, self._num_tokens + 1):
            delays.add(clock.end_ns(seed, number), now_ns)

    def _turn(self) -> session_pb2.StartTurn:
        message = types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text="Write down every number.")
        config = types_pb2.GenerationConfig(
            sampling=types_pb2.SamplingParams(seed=self._seed),
            stop=types_pb2.StopConditions(max_output_tokens=self._load.num_tokens),
        )
        return session_pb2.StartTurn(items=[types_pb2.Item(message=message)], config=config)


async def put_under_load(load: Load) -> tuple[Delays, list[Stream]]:
    """Opens the streams, waits for a line, and runs their turns side by side."""
    delays = Delays()
    num_connections = -(-load.num_streams // _STREAMS_PER_CONNECTION)
    connections = [await Connection.open(load.target) for _ in range(num_connections)]
    streams = [
        Stream(connections[i % num_connections], load, load.first_seed + i, delays)
        for i in range(load.num_streams)
    ]
    for start in range(0, len(streams), 32):
        opening = streams[start : start + 32]
        for stream in opening:
            stream.open()
        for stream in opening:
            await asyncio.wait_for(stream.opened.wait(), _OPENING_S)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    start_s, start = time.process_time(), main_thread_time(os.getpid())
    for stream in streams:
        stream.run()
    for stream in streams:
        await stream.ended.wait()
        stream.check()
    delays.cpu_s = time.process_time() - start_s
    delays.wait_s = (main_thread_time(os.getpid()).wait_ns - start.wait_ns) / 1e9
    for connection in connections:
        connection.close()
    return delays, streams


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--clock", type=Path, required=True)
    for name in ("first-seed", "num-streams", "num-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = vars(parser.parse_args(arguments))
    load = Load(**{**options, "clock": StepClock(options["clock"])})
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        delays, streams = runner.run(put_under_load(load))
    lives = [stream.lived_ns for stream in streams]
    told = {
        "num_messages": delays.num_messages,
        "cpu_s": delays.cpu_s,
        "wait_s": delays.wait_s,
        "all_live_ns": [max(first for first, _ in lives), min(last for _, last in lives)],
        "made_ns": delays.made_ns.tolist(),
        "late_ns": delays.late_ns.tolist(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
