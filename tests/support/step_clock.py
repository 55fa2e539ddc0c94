"""When each step of an engine ended, and which step began a request: shared through a file."""

import mmap
import os
from pathlib import Path

_NUM_STEPS = 1 << 18
_NUM_SEEDS = 1 << 16


class StepClock:
    """Instants are on CLOCK_MONOTONIC, which all processes of a machine share.

    The engine process writes, any process reads. Requests are told apart by their seeds.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8 * (_NUM_STEPS + _NUM_SEEDS))
            self._memory = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._cells = memoryview(self._memory).cast("Q")

    def note_step(self, step: int, end_ns: int) -> None:
        """Notes when a step ended."""
        self._cells[step % _NUM_STEPS] = end_ns

    def note_start(self, seed: int, step: int) -> None:
        """Notes which step gave a request its first token."""
        self._cells[_NUM_STEPS + seed % _NUM_SEEDS] = step

    def end_ns(self, seed: int, num_tokens: int) -> int:
        """Returns when the step ended that brought a request's token of that number, from 1."""
        step = self._cells[_NUM_STEPS + seed % _NUM_SEEDS] + num_tokens - 1
        return self._cells[step % _NUM_STEPS]
