"""Tortures several servers at once, each with clients, a store and a seed of its own."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_RUN = Path(__file__).with_name("run.py")
_NOT_COUNTS = ("seed", "seconds")


def torture_side_by_side(
    num_servers: int, *, num_kills: int, seed: int, arguments: Sequence[str]
) -> tuple[dict[str, int | float], bool]:
    """Divides the kills among servers and passes on what each run says.

    Args:
        num_servers: Runs at once, each in a process of its own; no more than kills.
        num_kills: Of all runs together.
        seed: Of the first run; the others' are the next numbers.
        arguments: What every run is told beside its kills and its seed.

    Returns:
        The figures of all, added up (`seed` the first, `seconds` the longest), and whether every
        run was good. A run that ended without figures is none.
    """
    shares = [
        num_kills // num_servers + (place < num_kills % num_servers) for place in range(num_servers)
    ]
    runs = [
        subprocess.Popen(
            [sys.executable, _RUN, *arguments, f"--kills={share}", f"--seed={seed + place}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for place, share in enumerate(shares)
    ]
    last_lines = [""] * num_servers
    readers = [
        threading.Thread(target=_pass_on, args=(place, run, last_lines))
        for place, run in enumerate(runs)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    good = [run.wait() == 0 for run in runs]
    return _added_up(last_lines, seed), all(good)


def _pass_on(place: int, run: "subprocess.Popen[str]", last_lines: list[str]) -> None:
    assert run.stdout is not None
    for line in run.stdout:
        last_lines[place] = line
        print(f"[{place}] {line}", end="", flush=True)


def _added_up(last_lines: Sequence[str], seed: int) -> dict[str, int | float]:
    added: dict[str, int | float] = {"seed": seed}
    longest = 0.0
    for line in last_lines:
        figures = json.loads(line) if line.startswith("{") else {}
        longest = max(longest, figures.get("seconds", 0.0))
        for name, value in figures.items():
            if name not in _NOT_COUNTS:
                added[name] = added.get(name, 0) + value
    return {**added, "seconds": longest}
