"""How the process that measures an engine is told what to measure."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.parent_process import run_at_terminal

WORKLOADS = ("decode", "prefill", "mix", "sessions")
"""In the order in which they are run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineBench:
    """What to measure."""

    model: str
    """A checkpoint's directory, or the path of a config.json."""
    random_seed: int | None
    """Weights come from it; None: from the checkpoint."""
    config: EngineConfig
    workloads: tuple[str, ...] = WORKLOADS
    batch_sizes: tuple[int, ...] = (1, 8, 32, 128, 256)
    """Of the decode workload."""
    divisor: int = 1
    """By which lengths and counts are divided, for a quick look."""


def bench_command() -> list[str]:
    """Returns the command that measures by this process's Python."""
    return [sys.executable, "-m", "antiphon_engine.offline_bench"]


def run_offline_bench(bench: OfflineBench, command: Sequence[str]) -> int:
    """Measures in a process of its own, which prints the figures; returns its exit status."""
    return run_at_terminal(command, msgspec.json.encode(bench))
