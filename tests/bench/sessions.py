"""Measures sessions over the wire, with an engine that computes nothing.

Idle sessions and what they take up; streams at 50 tokens a second each and how late their tokens
come, from the end of the engine's step to the client; what a session's 500th turn costs the server
against its first ones. The load comes from processes of their own. Prints a table, and as the last
line one JSON object.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.v1 import session_pb2, types_pb2
from antiphon.v1.session_pb2_grpc import SessionServiceStub as Stub

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon_server.text.tokenizer import Tokenizer
from bench.machine_pace import MachinePace, slow_spans
from bench.session_delays import delivery_figures, read_told
from bench.session_load import CHARACTERS_PER_TOKEN
from support.fake_engine_process import Behaviour, fake_engine_command
from support.hollow_checkpoint import save_hollow_checkpoint
from support.process_figures import cpu_time_ns, main_thread_time, memory_bytes
from support.tiny_tokenizers import VOCABULARY_SIZE
from torture.victim import Victim

_CONTEXT_TOKENS = 65_536
_TOKENS_PER_S = 50
_NUM_FIRST_TURNS = 10
_MEMORY_AFTER_S = 0.6
"""Where in a run of streams memory is read, as a part of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    num_idle: int
    stream_counts: Sequence[int]
    stream_s: int
    num_turns: int
    num_turn_sessions: int
    num_loads: int


class Bench:
    """A server, and the load on it."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory = directory
        self._plan = plan
        self._clock_path = directory / "clock"
        self._next_seed = 1

    async def run(self) -> dict[str, float]:
        """Returns all figures."""
        plan, figures = self._plan, dict[str, float]()
        async with Serving(self._directory, step_interval_s=0.001, clock_path="") as victim:
            figures |= await self._measure_idle(victim)
            figures |= await self._measure_turns(victim)
        folder = self._directory / "streams"
        interval_s = 1 / _TOKENS_PER_S
        async with Serving(
            folder, step_interval_s=interval_s, clock_path=str(self._clock_path)
        ) as victim:
            await _make_sessions(victim, plan.num_idle)
            for num_streams in plan.stream_counts:
                figures |= await self._measure_streams(victim, num_streams)
        return figures

    async def _measure_idle(self, victim: Victim) -> dict[str, float]:
        await _make_sessions(victim, 100, prefix="first")
        before_bytes = memory_bytes(victim.front_end)
        stored_before = victim.stored_bytes()
        await _make_sessions(victim, self._plan.num_idle)
        number = self._plan.num_idle
        return {
            "bytes_per_idle_session": round(
                (memory_bytes(victim.front_end) - before_bytes) / number
            ),
            "stored_bytes_per_idle_session": round(
                (victim.stored_bytes() - stored_before) / number
            ),
        }

    async def _measure_turns(self, victim: Victim) -> dict[str, float]:
        """Compares the server's CPU time for late turns with that for first ones.

        Side by side, since a machine's pace changes: new sessions have their first turns between
        the last ones of old sessions.
        """
        plan = self._plan
        async with victim.channel() as channel:
            stub = Stub(channel)
            indices = range(plan.num_turn_sessions)
            old = [(await _create(stub, f"old-{index}")).name for index in indices]
            new = [(await _create(stub, f"new-{index}")).name for index in indices]
            for _ in range(plan.num_turns - _NUM_FIRST_TURNS):
                for name in old:
                    await _run_turn(stub, name)
            spent_ns = {"old": 0, "new": 0}
            for _ in range(_NUM_FIRST_TURNS):
                for pair in zip(old, new, strict=True):
                    for kind, name in zip(spent_ns, pair, strict=True):
                        start_ns = cpu_time_ns(victim.front_end)
                        await _run_turn(stub, name)
                        spent_ns[kind] += cpu_time_ns(victim.front_end) - start_ns
        num_measured = _NUM_FIRST_TURNS * plan.num_turn_sessions
        return {
            "turn_cost_first_ms": round(spent_ns["new"] / num_measured / 1e6, 3),
            f"turn_cost_{plan.num_turns}_ms": round(spent_ns["old"] / num_measured / 1e6, 3),
            f"turn_cost_ratio_{plan.num_turns}": round(spent_ns["old"] / spent_ns["new"], 3),
        }

    async def _measure_streams(self, victim: Victim, num_streams: int) -> dict[str, float]:
        before_bytes = memory_bytes(victim.front_end)
        loads = [await self._start_load(victim, share) for share in self._shares(num_streams)]
        for load in loads:
            assert load.stdout is not None
            assert (await load.stdout.readline()).strip() == b"ready"
        start_ns, loop_start = cpu_time_ns(victim.front_end), main_thread_time(victim.front_end)
        for load in loads:
            assert load.stdin is not None
            load.stdin.write(b"\n")
        with MachinePace() as pace:
            await asyncio.sleep(_MEMORY_AFTER_S * self._plan.stream_s)
            bytes_per_stream = (memory_bytes(victim.front_end) - before_bytes) / num_streams
            told = [read_told(await _answer_of(load)) for load in loads]
        cpu_s = (cpu_time_ns(victim.front_end) - start_ns) / 1e9
        loop = main_thread_time(victim.front_end)
        loop_ns = loop.run_ns - loop_start.run_ns
        num_tokens = num_streams * self._num_tokens
        num_messages = sum(each.num_messages for each in told)
        load_cpu_s = sum(each.cpu_s for each in told)
        figures = {
            **delivery_figures(told, slow_spans(pace.samples)),
            "tokens_per_message": round(num_tokens / num_messages, 2),
            "cpu_us_per_token": round(cpu_s / num_tokens * 1e6, 1),
            "cpu_share": round(cpu_s / self._plan.stream_s, 2),
            "loop_cpu_us_per_token": round(loop_ns / num_tokens / 1e3, 1),
            # What delays have in them that a machine with more cores, or less to do, does not show.
            "loop_wait_us_per_token": round(
                (loop.wait_ns - loop_start.wait_ns) / num_tokens / 1e3, 1
            ),
            "load_cpu_share": round(load_cpu_s / self._plan.stream_s, 2),
            "load_wait_share": round(
                sum(each.wait_s for each in told) / len(told) / self._plan.stream_s, 2
            ),
        }
        named = {f"{name}_{num_streams}": value for name, value in figures.items()}
        return named | {"bytes_per_stream": round(bytes_per_stream)}

    @property
    def _num_tokens(self) -> int:
        return self._plan.stream_s * _TOKENS_PER_S

    def _shares(self, num_streams: int) -> list[int]:
        number = self._plan.num_loads
        return [num_streams // number + (i < num_streams % number) for i in range(number)]

    async def _start_load(self, victim: Victim, num_streams: int) -> asyncio.subprocess.Process:
        first_seed = self._next_seed
        self._next_seed += num_streams
        options = {
            "target": victim.target,
            "clock": self._clock_path,
            "first-seed": first_seed,
            "num-streams": num_streams,
            "num-tokens": self._num_tokens,
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("session_load.py")),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )


async def _answer_of(load: asyncio.subprocess.Process) -> bytes:
    answer, _ = await load.communicate()
    assert load.returncode == 0, "a load failed"
    return answer


class Serving:
    """A server over an engine of a certain pace, until the block ends."""

    def __init__(self, directory: Path, *, step_interval_s: float, clock_path: str) -> None:
        self._directory = directory
        self._step_interval_s = step_interval_s
        self._clock_path = clock_path
        self._victim: Victim | None = None

    async def __aenter__(self) -> Victim:
        self._directory.mkdir(exist_ok=True)
        checkpoint = save_hollow_checkpoint(
            self._directory / "model", context_tokens=_CONTEXT_TOKENS
        )
        behaviour = Behaviour(
            step_interval_s=self._step_interval_s,
            context_tokens=_CONTEXT_TOKENS,
            alphabet=_tokens_of_equal_length(Tokenizer.load(checkpoint)),
            clock_path=self._clock_path,
        )
        self._victim = await Victim.prepare(
            self._directory,
            [
                f"model.source={checkpoint}",
                "engine.max_rows=1024",
                "engine.max_requests=2048",
                "limits.max_queued_requests=2048",
                "sessions.max_sessions=100000",
                "logging.level=info",
                "logging.format=json",
            ],
            fake_engine_command(self._directory / "behaviour.json", behaviour),
        )
        await self._victim.start()
        assert await self._victim.wait_up(), self._victim.log_path.read_text()[-2000:]
        return self._victim

    async def __aexit__(self, *_: object) -> None:
        assert self._victim is not None
        await self._victim.close()


async def _make_sessions(victim: Victim, number: int, *, prefix: str = "idle") -> None:
    async with victim.channel() as channel:
        stub = Stub(channel)
        for start in range(0, number, 100):
            ids = range(start, min(start + 100, number))
            await asyncio.gather(*(_create(stub, f"{prefix}-{i}") for i in ids))


async def _create(stub: Stub, session_id: str) -> session_pb2.Session:
    return await stub.CreateSession(
        session_pb2.CreateSessionRequest(
            session_id=session_id,
            session=session_pb2.Session(instructions="Answer in one short sentence."),
            items=[_user(f"I am number {session_id}.")],
        )
    )


async def _run_turn(stub: Stub, name: str) -> None:
    config = types_pb2.GenerationConfig(
        stop=types_pb2.StopConditions(max_output_tokens=4, min_output_tokens=4)
    )
    turn = session_pb2.StartTurn(items=[_user("And then?")], config=config)
    call = stub.RunTurn(session_pb2.RunTurnRequest(session=name, turn=turn))
    async for event in call:
        assert not event.HasField("failed"), event


def _user(text: str) -> types_pb2.Item:
    return types_pb2.Item(message=types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text=text))


def _tokens_of_equal_length(tokenizer: Tokenizer) -> list[int]:
    """Returns ids whose text has so many characters, whatever stands around them."""
    found = []
    for token_id in range(VOCABULARY_SIZE):
        text = tokenizer.decode([token_id], skip_special_tokens=True)
        if len(text) == CHARACTERS_PER_TOKEN and text.isascii():
            found.append(token_id)
    assert len(found) > 50
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000, help="idle sessions")
    parser.add_argument("--streams", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--seconds", type=int, default=20, help="how long streams last")
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--turn-sessions", type=int, default=8)
    parser.add_argument("--loads", type=int, default=1, help="processes that the load comes from")
    options = parser.parse_args(arguments)
    plan = Plan(
        num_idle=options.idle,
        stream_counts=options.streams,
        stream_s=options.seconds,
        num_turns=options.turns,
        num_turn_sessions=options.turn_sessions,
        num_loads=options.loads,
    )
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        figures = asyncio.run(Bench(Path(folder), plan).run())
    figures["num_cores"] = len(os.sched_getaffinity(0))
    for name, value in figures.items():
        print(f"{name:32} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
