"""Measures engines side by side: each figure of one, then of the next, round after round."""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.cpu_peers.catalog import Engine, Machine
from bench.cpu_peers.foreign_load import ForeignLoad, wait_for_rest
from bench.cpu_peers.memory import PeakMemory
from bench.cpu_peers.prompts import Prompts
from bench.cpu_peers.streams import (
    MeasuredEngine,
    check_lengths,
    decode_tokens_per_s,
    first_token_s,
)

_STREAM_PROMPT_TOKENS = 32
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    num_rounds: int
    output_tokens: int
    streams: Sequence[int] = (1, 4, 16)
    prefill_tokens: int = 512
    history_tokens: int = 1000
    turn_tokens: int = 32
    limit_s: float
    """No round is begun that would end later than this."""


@dataclass(slots=True)
class Figures:
    """What was seen of one engine."""

    startup_s: float = 0.0
    peak_pss_mb: float = 0.0
    memory_shares_mb: dict[str, int] = field(default_factory=dict)
    """At the peak, by what processes are for."""
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failure: str = ""

    def medians(self) -> dict[str, float]:
        """Returns the issue's names and the values."""
        found = {name: round(statistics.median(each), 4) for name, each in self.samples.items()}
        return found | {
            "peak_pss_mb": round(self.peak_pss_mb, 1),
            "startup_s": round(self.startup_s, 2),
        }


class SideBySide:
    """Engines that are up together, and what was seen of them."""

    def __init__(self, machine: Machine, plan: Plan, prompts: Prompts) -> None:
        self.figures: dict[str, Figures] = {}
        self.foreign = ForeignLoad()
        self.num_rounds = 0
        self._machine = machine
        self._plan = plan
        self._prompts = prompts
        self._running: dict[str, MeasuredEngine] = {}

    def measure(self, engines: Sequence[Engine]) -> None:
        """Starts all, runs the rounds, and ends all."""
        begin_s = time.monotonic()
        products = [engine.product for engine in engines]
        for engine in engines:
            if products.count(engine.product) > 1:
                with ExitStack() as stack:
                    self._start(engine, stack)
        with ExitStack() as stack:
            for engine in engines:
                if engine.name not in self.figures:
                    self._start(engine, stack)
                elif not self.figures[engine.name].failure:
                    self._start_again(engine, stack)
            self._run_rounds(engines, begin_s)

    def _start(self, engine: Engine, stack: ExitStack) -> None:
        """Starts an engine, which tells time and memory, and lets it run in."""
        figures = self.figures[engine.name] = Figures()
        _tell(f"starting {engine.name} ...")
        memory = PeakMemory()
        try:
            engine.prepare(self._machine)
            begin_s = time.monotonic()
            with memory.watching():
                running = stack.enter_context(engine.open(self._machine))
                figures.startup_s = time.monotonic() - begin_s
                self._run_in(running)
            figures.peak_pss_mb = memory.bytes / 1e6
            figures.memory_shares_mb = {
                role: round(num_bytes / 1e6) for role, num_bytes in memory.shares.items()
            }
            self._running[engine.name] = running
        except Exception as error:
            self._fail(engine.name, error)

    def _start_again(self, engine: Engine, stack: ExitStack) -> None:
        try:
            running = stack.enter_context(engine.open(self._machine))
            running.generate([self._prompts.fresh(_STREAM_PROMPT_TOKENS)], _WARM_UP_TOKENS)
            self._running[engine.name] = running
        except Exception as error:
            self._fail(engine.name, error)

    def _run_in(self, running: MeasuredEngine) -> None:
        for num_streams in self._plan.streams:
            self._decode(running, num_streams, _WARM_UP_TOKENS)
        self._second_turn(running)

    def _run_rounds(self, engines: Sequence[Engine], begin_s: float) -> None:
        names = [engine.name for engine in engines]
        longest_s = 0.0
        for number in range(self._plan.num_rounds):
            round_begin_s = time.monotonic()
            if number and round_begin_s + longest_s > begin_s + self._plan.limit_s:
                _tell(f"no time for more than {number} rounds")
                return
            # Whoever goes first is another one each time.
            first = number % len(names)
            for figure, sample in self._samples():
                for name in (*names[first:], *names[:first]):
                    self._take(name, figure, sample)
            self.num_rounds += 1
            longest_s = max(longest_s, time.monotonic() - round_begin_s)

    def _samples(self) -> list[tuple[str, Callable[[MeasuredEngine], float]]]:
        plan = self._plan
        samples: list[tuple[str, Callable[[MeasuredEngine], float]]] = [
            (f"prefill{plan.prefill_tokens}_tps", self._prefill)
        ]
        for num in plan.streams:

            def decode(running: MeasuredEngine, num: int = num) -> float:
                return self._decode(running, num, plan.output_tokens)

            samples.append((f"decode{num}_tps", decode))
        return [*samples, ("turn2_ttft_s", self._second_turn)]

    def _take(self, name: str, figure: str, sample: Callable[[MeasuredEngine], float]) -> None:
        if name not in self._running:
            return
        running = self._running[name]
        wait_for_rest()
        try:
            with self.foreign.counting(running.process_id):
                value = sample(running)
        except Exception as error:
            self._fail(name, error)
            return
        self.figures[name].samples[figure].append(value)
        _tell(f"{name} {figure} {value:.4g} (others {self.foreign.last:.0%})")

    def _fail(self, name: str, error: Exception) -> None:
        self._running.pop(name, None)
        self.figures[name].failure = f"{type(error).__name__}: {error}"
        _tell(f"{name} failed: {self.figures[name].failure}")

    def _prefill(self, running: MeasuredEngine) -> float:
        num_tokens = self._plan.prefill_tokens
        streams = running.generate([self._prompts.fresh(num_tokens)], 1)
        check_lengths(streams, 1)
        return num_tokens / first_token_s(streams)

    def _decode(self, running: MeasuredEngine, num_streams: int, num_tokens: int) -> float:
        prompts = [self._prompts.fresh(_STREAM_PROMPT_TOKENS) for _ in range(num_streams)]
        streams = running.generate(prompts, num_tokens)
        check_lengths(streams, num_tokens)
        return decode_tokens_per_s(streams)

    def _second_turn(self, running: MeasuredEngine) -> float:
        plan = self._plan
        history = self._prompts.fresh(plan.history_tokens)
        (answer,) = running.generate([history], plan.turn_tokens)
        question = self._prompts.fresh(plan.turn_tokens)
        return first_token_s(running.generate([[*history, *answer.token_ids, *question]], 2))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
