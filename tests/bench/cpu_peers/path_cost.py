"""What gRPC and sessions cost: processor time of a server's turns against the engine's alone.

Both run 16 streams of equal lengths. A turn's prompt begins with what the model's template puts
there, which the cache has; in process, prompts begin alike over as many tokens. Within a pair each
side stands twice, one around the other, so that a machine whose pace changes evenly meanwhile gives
both the same.
"""

import asyncio
import statistics
from collections.abc import Callable
from typing import Any

from antiphon_client import Client
from bench.cpu_peers.antiphon_server import antiphon_server
from bench.cpu_peers.catalog import ENGINES, Machine, own_settings
from bench.cpu_peers.memory import process_tree
from bench.cpu_peers.prompts import Prompts, text_ids
from bench.cpu_peers.streams import MeasuredEngine, check_lengths
from bench.serving import WORDS, fixed_length
from support.process_figures import whole_cpu_time_ns

_WEIGHTS = "int8"
_NUM_STREAMS = 16
_NUM_WORDS = 24


class Turns:
    """Turns of new sessions, all at once."""

    def __init__(self, target: str, num_tokens: int) -> None:
        self._target = target
        self._num_tokens = num_tokens
        self._num_batches = 0
        self.prompt_tokens: list[int] = []
        """Of each turn of the last batch."""
        self.cached_tokens: list[int] = []

    async def run(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Opens sessions, has a turn in each between `begin` and `end`, and deletes them."""
        self._num_batches += 1
        async with Client(self._target) as client:
            sessions = [client.new_session() for _ in range(_NUM_STREAMS)]
            opened = [await session.__aenter__() for session in sessions]
            begin()
            usages = await asyncio.gather(
                *(self._turn(session, number) for number, session in enumerate(opened))
            )
            end()
            for context, session in zip(sessions, opened, strict=True):
                await context.__aexit__(None, None, None)
                await client.sessions.delete(session.name)
        self.prompt_tokens = [usage.prompt_tokens for usage in usages]
        self.cached_tokens = [usage.cached_prompt_tokens for usage in usages]

    async def _turn(self, session: Any, number: int) -> Any:
        first = self._num_batches * 7 + number * 11
        words = [WORDS[(first + i * (number + 1)) % len(WORDS)] for i in range(_NUM_WORDS)]
        turn = await session.send(
            f"{self._num_batches} {number} " + " ".join(words), fixed_length(self._num_tokens)
        )
        await turn.answer()
        assert turn.completed is not None
        assert turn.completed.usage.output_tokens == self._num_tokens
        return turn.completed.usage


class InProcess:
    """The same without a server."""

    def __init__(self, engine: MeasuredEngine, prompts: Prompts, num_tokens: int) -> None:
        self._engine = engine
        self._prompts = prompts
        self._num_tokens = num_tokens
        self._head = prompts.fresh(512)

    def run(self, turns: Turns) -> float:
        """Runs streams as long as the turns were; returns the processor time."""
        prompts = [
            [*self._head[:cached], *self._prompts.fresh(total - cached)]
            for total, cached in zip(turns.prompt_tokens, turns.cached_tokens, strict=True)
        ]
        before_s = cpu_s(self._engine.process_id)
        check_lengths(self._engine.generate(prompts, self._num_tokens), self._num_tokens)
        return cpu_s(self._engine.process_id) - before_s


def cpu_s(process_id: int) -> float:
    """Returns the processor time of a process and all below it."""
    return sum(map(whole_cpu_time_ns, process_tree(process_id))) / 1e9


def measure(machine: Machine, num_pairs: int, *, quick: bool) -> dict[str, Any]:
    """Measures pairs in alternating order, prints them, and returns medians."""
    num_tokens = 16 if quick else 128
    num_thousands = _NUM_STREAMS * num_tokens / 1000
    settings = [f"engine.{key}={value}" for key, value in own_settings(_WEIGHTS, machine).items()]
    settings.append(f"engine.num_threads={machine.num_threads}")
    prompts = Prompts(text_ids(machine.checkpoint), seed=num_pairs)
    alone: list[float] = []
    served: list[float] = []
    front_end: list[float] = []
    with (
        antiphon_server("demo", settings, machine.log("path-server"), tells_ids=False) as server,
        ENGINES[f"antiphon-{_WEIGHTS}-in-process"].open(machine) as engine,
    ):
        turns = Turns(server.target, num_tokens)
        in_process = InProcess(engine, prompts, num_tokens)

        def run_turns() -> float:
            looks: list[tuple[float, float]] = []

            def look() -> None:
                own_s = whole_cpu_time_ns(server.process_id) / 1e9
                looks.append((cpu_s(server.process_id), own_s))

            asyncio.run(turns.run(look, look))
            (whole_before_s, own_before_s), (whole_s, own_s) = looks
            front_end.append((own_s - own_before_s) / num_thousands)
            return (whole_s - whole_before_s) / num_thousands

        def run_alone() -> float:
            return in_process.run(turns) / num_thousands

        for _ in range(2):  # The first batch fills the cache with the template's beginning.
            run_turns()
        run_alone()
        front_end.clear()
        for pair in range(num_pairs):
            if pair % 2:
                outer, inner = around(run_turns, run_alone)
                served.append(outer)
                alone.append(inner)
            else:
                outer, inner = around(run_alone, run_turns)
                alone.append(outer)
                served.append(inner)
            print(f"pair {pair}: in process {alone[-1]:.3f} s, served {served[-1]:.3f} s")
    ratios = [with_path / without - 1 for with_path, without in zip(served, alone, strict=True)]
    found = {
        "overhead": round(statistics.median(ratios), 4),
        "overhead_min": round(min(ratios), 4),
        "overhead_max": round(max(ratios), 4),
        "in_process_cpu_s_per_1000": round(statistics.median(alone), 3),
        "served_cpu_s_per_1000": round(statistics.median(served), 3),
        "front_end_cpu_s_per_1000": round(statistics.median(front_end), 3),
    }
    print(f"gRPC and sessions: {found['overhead']:+.1%}, median of {num_pairs} pairs")
    return found


def around(outer: Callable[[], float], inner: Callable[[], float]) -> tuple[float, float]:
    """Runs one, twice the other, and the first again; returns what each gave in the mean."""
    before = outer()
    mean_of_inner = (inner() + inner()) / 2
    return (before + outer()) / 2, mean_of_inner
