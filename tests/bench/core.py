"""Measures the native core alone: what planning and committing a step cost.

Runs the C++ benchmark (CPU time of its thread, medians) and the same steady decode through a naive
scheduler in Python. Prints what the bars say of each figure, and as the last line one JSON object.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from core_naive import steady_decode_us


@dataclass(frozen=True)
class Bar:
    """What a figure should keep."""

    figure: str
    limit: float
    is_least: bool = False
    unit: str = ""

    def holds(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.limit if self.is_least else value <= self.limit

    def line(self, value: float) -> str:
        """Tells of a value in one line."""
        relation = "at least" if self.is_least else "at most"
        verdict = "good" if self.holds(value) else "MISSED"
        return f"{self.figure:<32}{value:>10.3f} {self.unit:<3}{relation} {self.limit:g}: {verdict}"


BARS = [
    Bar("plan_commit_us_256", 30, unit="µs"),
    Bar("plan_commit_us_1024", 150, unit="µs"),
    Bar("waiting_10k_ratio", 2),
    Bar("cold_100k_match_ms", 1, unit="ms"),
    Bar("warm_100k_match_ms", 1, unit="ms"),
    Bar("maxutil_vs_noevict", 0.9, is_least=True),
    Bar("maxutil_vs_noevict_known_lengths", 0.9, is_least=True),
    Bar("maxutil_vs_noevict_lockstep", 0.9, is_least=True),
]


def measured(binary: Path) -> dict[str, object]:
    """Returns the figures of the C++ benchmark."""
    output = subprocess.run([binary], check=True, stdout=subprocess.PIPE, text=True).stdout
    figures = json.loads(output)
    assert isinstance(figures, dict), "the benchmark prints one object"
    return figures


def number(figures: dict[str, object], name: str) -> float:
    """Returns one figure."""
    value = figures[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)


def spread(figures: dict[str, object], name: str) -> str:
    """Tells what single rounds gave, where a figure was measured in rounds."""
    rounds = figures.get(f"{name}_rounds")
    return f"; rounds {rounds[0]} to {rounds[1]}" if isinstance(rounds, list) else ""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("binary", type=Path, help="the C++ benchmark")
    parser.add_argument("--strict", action="store_true", help="fail where a bar is missed")
    arguments = parser.parse_args()
    figures = measured(arguments.binary)
    naive_us = steady_decode_us(num_rows=256, context_tokens=1024, block_tokens=32)
    figures["naive_python_us_256"] = round(naive_us, 1)
    figures["naive_python_ratio_256"] = round(naive_us / number(figures, "plan_commit_us_256"), 1)
    for bar in BARS:
        print(bar.line(number(figures, bar.figure)) + spread(figures, bar.figure))
    print(f"{'naive_python_ratio_256':<32}{figures['naive_python_ratio_256']:>10}")
    print(json.dumps(figures))
    if arguments.strict and not all(bar.holds(number(figures, bar.figure)) for bar in BARS):
        sys.exit("a bar is missed")


if __name__ == "__main__":
    main()
