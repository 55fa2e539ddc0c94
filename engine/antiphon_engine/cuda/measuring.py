"""Measures in which way a decode step's products are fastest.

What counts is the whole step: a kernel that is fastest alone may take room in which the next one
would have started early. So products are changed one kind at a time, in captured steps, and what
makes the step shorter stays, if it does so beside what it replaces as well: a device's clock rises
under the first steps and falls under many, and would choose what comes late, or early.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
import torch
from triton import AsyncCompileMode, TritonError

from antiphon_engine.cuda.choices import candidates
from antiphon_engine.cuda.kernels.products import Product, ProductConfig, multiply
from antiphon_engine.cuda.measured_choices import MeasuredChoices
from antiphon_engine.cuda.step_products import ProductRunner

_log = structlog.get_logger(__name__)

_NUM_REPLAYS: Final = 7
_NUM_COMPILERS: Final = 8
_GAIN: Final = 0.998
"""What a step must come to, of the best so far, for a choice to be taken: less is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductKind:
    """A product that every layer has, or that a step has once."""

    product: Product
    """Of the first layer."""
    in_dtype: torch.dtype
    out_dtype: torch.dtype


class StepTimer(Protocol):
    """Tells how long a step takes."""

    def time_ms(self, launch: Callable[[], None]) -> float:
        """Returns the time of the step that `launch` launches; waits for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTuner:
    """Chooses how a model's products are computed, within a time."""

    runner: ProductRunner
    """Takes the choices."""
    kinds: Mapping[str, ProductKind]
    make_step: Callable[[int], Callable[[], None]]
    """Returns what launches a decode step of so many rows."""
    model_key: str
    """What the choices depend on beside the number of rows."""
    known: MeasuredChoices[ProductConfig | None]
    deadline: float
    """By `time.monotonic`: what comes later keeps its default."""
    make_clock: Callable[[], StepTimer] = field(default_factory=lambda: StepClock)

    def choose(self, bound: int, num_rows: int) -> None:
        """Chooses for the row counts of one bound, measuring with `num_rows` of them."""
        keys = {kind: f"{self.model_key} {bound} {kind}" for kind in self.kinds}
        if all(key in self.known for key in keys.values()):
            for kind, key in keys.items():
                self.runner.choices[kind][bound] = self.known[key]
            return
        if time.monotonic() > self.deadline:
            return
        defaults = {kind: self.runner.choices[kind].get(bound) for kind in self.kinds}
        try:
            is_complete = self._measure(bound, num_rows)
        except (RuntimeError, TritonError) as error:
            # What can't be compiled or captured here must not keep a model from being served.
            _log.warning("products are not tuned", rows=num_rows, error=str(error))
            for kind, config in defaults.items():
                self.runner.choices[kind][bound] = config
            return
        if is_complete:
            for kind, key in keys.items():
                self.known[key] = self.runner.choices[kind].get(bound)

    def _measure(self, bound: int, num_rows: int) -> bool:
        """Takes what makes a step shorter; returns whether there was time for everything."""
        tried = {kind: self._tried(kind, num_rows) for kind in self.kinds}
        self._compile(tried, num_rows)
        step, clock = self.make_step(num_rows), self.make_clock()
        best_ms = clock.time_ms(step)
        for kind, configs in tried.items():
            # Few rows are multiplied as they are by 8-bit weights, which libraries don't offer.
            library = () if self.kinds[kind].product.is_narrow else (None,)
            for config in (*configs, *library):
                if time.monotonic() > self.deadline:
                    return False
                choices = self.runner.choices[kind]
                kept = choices.get(bound)
                if config == kept:
                    continue
                choices[bound] = config
                spent_ms = clock.time_ms(step)
                choices[bound] = kept
                if spent_ms < _GAIN * best_ms:
                    best_ms = clock.time_ms(step)
                if spent_ms < _GAIN * best_ms:
                    choices[bound], best_ms = config, spent_ms
        return True

    def _tried(self, kind: str, num_rows: int) -> list[ProductConfig]:
        product, workspace = self.kinds[kind].product, self.runner.workspace
        found = candidates(product, num_rows)
        return [config for config in found if workspace.fits(product, num_rows, config)]

    def _compile(self, tried: Mapping[str, Sequence[ProductConfig]], num_rows: int) -> None:
        """Compiles what will be measured, side by side."""
        executor = ThreadPoolExecutor(_NUM_COMPILERS)
        with executor, AsyncCompileMode(executor):
            for kind, configs in tried.items():
                product, out_dtype = self.kinds[kind].product, self.kinds[kind].out_dtype
                x_MK = torch.empty(
                    (num_rows, product.num_in),
                    dtype=self.kinds[kind].in_dtype,
                    device=product.weight_NK.device,
                )
                y_MN = x_MK.new_empty((num_rows, product.num_out), dtype=out_dtype)
                for config in configs:
                    multiply(
                        product,
                        x_MK,
                        y_MN,
                        config=config,
                        workspace=self.runner.workspace,
                        overlap=self.runner.overlap,
                        only_compile=True,
                    )


class StepClock:
    """Times captured steps, whose memory lies in one pool.

    Memory that each capture would allocate and free costs more than measuring. The pool is there as
    long as a graph is that has it, so the last one stays until the next is captured.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None

    def time_ms(self, launch: Callable[[], None]) -> float:
        """Returns the median time of a step; waits for the device."""
        launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            launch()
        self._last = graph
        times: list[float] = []
        for _ in range(_NUM_REPLAYS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times[1:])[_NUM_REPLAYS // 2]
