"""What figures stand on: the host's speed, the card and its state, the libraries."""

import platform
import subprocess
import time

import torch

_CALIBRATION_TURNS = 5_000_000
_CARD_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.draw",
)


def calibrate_host_s() -> float:
    """Returns what a loop of 5 million turns takes: hosts of the same card differ by half."""
    start_s = time.perf_counter()
    total = 0
    for turn in range(_CALIBRATION_TURNS):
        total += turn
    return time.perf_counter() - start_s


def describe_machine(device: str) -> dict[str, object]:
    """Returns facts by name."""
    facts: dict[str, object] = {
        "host_calibration_s": round(calibrate_host_s(), 3),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
    }
    if device == "cuda":
        facts["card"] = read_card()
    return facts


def read_card() -> dict[str, str]:
    """Returns the state of the first card, as its driver's tool tells it; empty without one."""
    query = f"--query-gpu={','.join(_CARD_FIELDS)}"
    command = ["nvidia-smi", "--id=0", query, "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in told.stdout.strip().split(",")]
    return dict(zip(_CARD_FIELDS, values, strict=False))
