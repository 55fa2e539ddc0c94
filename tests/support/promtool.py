"""Prometheus's own check of what is written for it."""

import subprocess
from pathlib import Path

_PROGRAM = Path(__file__).parents[2] / "build" / "promtool"


def promtool(*arguments: str | Path) -> str:
    """Runs it, which must succeed, and returns what it said."""
    assert _PROGRAM.exists(), "`make build/promtool` brings it"
    ran = subprocess.run(
        [_PROGRAM, *arguments], check=False, capture_output=True, text=True, timeout=60
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said
