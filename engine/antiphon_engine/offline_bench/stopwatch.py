"""Where the host's and the device's time of steps goes."""

import time
from collections.abc import Callable
from statistics import median

import torch

from antiphon_engine.prompt_scores import ScoredTokens, TokenScores
from antiphon_engine.step_executor import StepBuffers, StepExecutor
from antiphon_engine.step_parts import StepPart

NUM_PARTS = len(StepPart)


class Stopwatch:
    """A PartWatch that keeps, for each pass of a loop, what each part took."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._part: StepPart | None = None
        self._since_ns = 0
        self._pass_ns = [0] * NUM_PARTS
        self._passes_ns: list[list[int]] = []

    def __call__(self, part: StepPart) -> None:
        """Charges the time since the last call to the part that was named there."""
        now_ns = self._clock_ns()
        if self._part is not None:
            self._pass_ns[self._part] += now_ns - self._since_ns
        self._part, self._since_ns = part, now_ns

    def end_pass(self) -> None:
        """Ends a pass: what comes until the next part is nobody's."""
        assert self._part is not None
        self(self._part)
        self._part = None
        self._passes_ns.append(self._pass_ns)
        self._pass_ns = [0] * NUM_PARTS

    def clear(self) -> None:
        """Forgets all passes."""
        self._passes_ns.clear()

    def medians_us(self) -> dict[str, float]:
        """Returns the median of each part over the passes that launched and ended a step.

        `host` is all of a pass but the wait for the device.
        """
        whole = [
            times for times in self._passes_ns if times[StepPart.LAUNCH] and times[StepPart.COMMIT]
        ]
        if not whole:
            return {}
        parts = {
            part.name.lower(): median(times[part] for times in whole) / 1000 for part in StepPart
        }
        host = median(sum(times) - times[StepPart.WAIT] for times in whole) / 1000
        return {name: round(us, 1) for name, us in {**parts, "host": host}.items()}


class TimedExecutor:
    """A StepExecutor that also tells what its steps take on a CUDA device."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self._starts: dict[int, torch.cuda.Event] = {}
        self._ends: dict[int, torch.cuda.Event] = {}
        self.device_ms: list[float] = []
        """Of each step that was waited for, in order."""

    def buffers(self, set_index: int) -> StepBuffers:
        """See StepExecutor."""
        return self._executor.buffers(set_index)

    def execute(self, set_index: int) -> torch.Tensor:
        """See StepExecutor."""
        _mark(self._starts, set_index)
        return self._executor.execute(set_index)

    def overlapped_ns(self, set_index: int) -> int:
        """See StepExecutor."""
        return self._executor.overlapped_ns(set_index)

    def likeliest(self, set_index: int) -> torch.Tensor | None:
        """See StepExecutor."""
        return self._executor.likeliest(set_index)

    def score(self, set_index: int, scored: ScoredTokens) -> TokenScores:
        """See StepExecutor."""
        return self._executor.score(set_index, scored)

    def store_tokens(self, set_index: int, tokens: torch.Tensor) -> None:
        """See StepExecutor."""
        self._executor.store_tokens(set_index, tokens)
        _mark(self._ends, set_index)

    def wait(self, set_index: int) -> None:
        """See StepExecutor."""
        self._executor.wait(set_index)
        self._ends[set_index].synchronize()
        self.device_ms.append(self._starts[set_index].elapsed_time(self._ends[set_index]))


def _mark(events: dict[int, torch.cuda.Event], set_index: int) -> None:
    # Made once for each set: that takes as long as launching a small step.
    if set_index not in events:
        events[set_index] = torch.cuda.Event(enable_timing=True)
    events[set_index].record()
