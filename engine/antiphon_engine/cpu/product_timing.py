"""How long products take by each of the kernels that could compute them."""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _kernels

ROW_COUNTS: Final = (1, 16, 512)
"""One stream, several, and a prompt."""
_NUM_ROUNDS: Final = 6
_HOPELESS: Final = 2.0
"""What takes so many times as long as another in the first round isn't measured again."""
_MAX_WEIGHTS: Final = 1 << 20
"""Of a matrix that is measured. Others say the same of each weight, since caches are emptied."""
_PAIR_ROWS: Final = 32
"""Outputs that lie together: the rest are copies of the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A matrix that stands for all of its form."""

    num_out: int
    num_in: int
    weight_format: str


Figures = Mapping[str, Mapping[str, Sequence[float]]]
"""Seconds of a thread by form of weights and instruction set, for each of `ROW_COUNTS`."""


def time_products(shapes: Sequence[Shape], isas: Mapping[str, Sequence[str]]) -> Figures:
    """Measures each shape by each of the instruction sets named for its form.

    What counts is this thread's processor time, which others on the machine change little. All are
    measured in turn, round after round, and the least of each stands. Weights come from memory each
    time, as they do in a step, which reads all the others in between. It takes a tenth of a second
    for a form.

    Args:
        shapes: One of each form.
        isas: Those that this machine has.
    """
    team = _kernels.ThreadTeam(1, pin=False)
    trials = {
        shape.weight_format: {isa: _Trial(team, shape, isa) for isa in isas[shape.weight_format]}
        for shape in shapes
    }
    for number in range(_NUM_ROUNDS):
        for by_isa in trials.values():
            least_s = min(trial.mean_s for trial in by_isa.values())
            for trial, num_rows in itertools.product(by_isa.values(), ROW_COUNTS):
                if number == 0 or trial.mean_s < least_s * _HOPELESS:
                    trial.run(num_rows)
    return {
        weight_format: {isa: list(trial.least_s.values()) for isa, trial in by_isa.items()}
        for weight_format, by_isa in trials.items()
    }


def mean_s(times_s: Sequence[float]) -> float:
    """Returns what compares kernels: the geometric mean, so that few rows count as much as many."""
    return float(np.exp(np.mean(np.log(times_s))))


class _Trial:
    """One matrix of random weights, and rows to multiply with it."""

    def __init__(self, team: _kernels.ThreadTeam, shape: Shape, isa: str) -> None:
        most = max(_PAIR_ROWS, _MAX_WEIGHTS // shape.num_in)
        num_out = -(-min(shape.num_out, most) // _PAIR_ROWS) * _PAIR_ROWS
        matrix = _kernels.PackedMatrix(
            num_out, shape.num_in, weight_format=shape.weight_format, isa=isa
        )
        random = np.random.default_rng(0)
        matrix.pack(0, random.standard_normal((_PAIR_ROWS, shape.num_in), np.float32))
        self._weights, scales = matrix.arrays
        for array in (self._weights, scales):
            pairs = array.reshape(num_out // _PAIR_ROWS, -1)
            pairs[1:] = pairs[0]
        program = _kernels.Program(team, max_tokens=max(ROW_COUNTS), isa=isa)
        rows = program.add_buffer(shape.num_in, matrix.input_type)
        out = program.add_buffer(num_out, "float32")
        program.add_linear(rows, matrix, out=out)
        _fill(program.buffer(rows), random)
        self._program = program
        self.least_s = dict.fromkeys(ROW_COUNTS, math.inf)

    @property
    def mean_s(self) -> float:
        """The geometric mean over the numbers of rows; infinite before all were measured."""
        return mean_s(list(self.least_s.values()))

    def run(self, num_rows: int) -> None:
        """Multiplies once."""
        _kernels.evict(self._weights)
        begin_s = time.thread_time()
        self._program.run(num_rows)
        taken_s = time.thread_time() - begin_s
        self.least_s[num_rows] = min(taken_s, self.least_s[num_rows])


def _fill(buffer: NDArray[np.generic], random: np.random.Generator) -> None:
    values = random.standard_normal(buffer.shape, np.float32)
    if buffer.dtype == np.uint16:
        buffer[:] = values.view(np.uint32) >> 16
    else:
        buffer[:] = values
