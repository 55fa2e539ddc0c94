"""Which instruction set a model's products use, by the form of their weights.

The best one by its name isn't the quickest everywhere. So where a machine meets a model's shapes
for the first time, products are measured by each set that it has, and what was chosen is kept on
disk, for this processor, number of threads and build of the kernels. What is there and isn't whole,
or names what the machine lacks, is measured anew.

A form has one set, whatever the number of rows: so a row's bits don't depend on its mates. For the
same reason nothing is chosen from whose results do, such as PyTorch's products.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import structlog

from antiphon_engine import _kernels
from antiphon_engine.cpu.packed_cache import library_identity
from antiphon_engine.cpu.product_timing import ROW_COUNTS, Figures, Shape, mean_s, time_products
from antiphon_engine.cpu.products import Products
from antiphon_engine.measured_file import keep_measured, read_measured

_log = structlog.get_logger(__name__)

_ISAS: Final = ("amx", "avx512_bf16", "avx512", "avx2", "avx512_vnni", "avx_vnni")
_OF_INTEGERS: Final = ("avx512_vnni", "avx_vnni")
_COARSE: Final = ("int6", "int5", "int4")
"""Weights that round more than activations of 8 bits do. With int8 these would cost more than the
weights: they are taken by name only."""
_MIN_BYTES: Final = 64 << 20
"""Of a model: a smaller one's steps are mostly other things."""
_MIN_GAIN: Final = 1.1
"""By how much another one has to be quicker than the best by its name."""

Measure = Callable[[Sequence[Shape], Mapping[str, Sequence[str]]], Figures]


class _Kept(msgspec.Struct, frozen=True):
    """What a file says."""

    facts: str
    """What it holds for."""
    chosen: dict[str, str]
    """Instruction sets by form of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChooser:
    """Chooses for models whose rows are bfloat16. Processes may share the directory."""

    directory: Path
    measure: Measure = time_products
    min_bytes: int = _MIN_BYTES
    """What has smaller weights isn't measured."""

    def choose(self, products: Products, num_threads: int) -> dict[str, str]:
        """Returns the instruction set for each form of a model's weights."""
        best = _kernels.best_isa()
        shapes = representative_shapes(products)
        isas = {shape.weight_format: candidates(shape.weight_format, best) for shape in shapes}
        by_name = {weight_format: found[0] for weight_format, found in isas.items()}
        num_bytes = sum(matrix.num_bytes for matrix in products.matrices())
        if num_bytes < self.min_bytes or all(len(found) == 1 for found in isas.values()):
            return by_name
        facts = _facts(shapes, num_threads)
        path = self.directory / f"kernels-{sha256(facts.encode()).hexdigest()[:16]}.json"
        chosen = _read(path, facts, isas)
        if chosen is None:
            figures = self.measure(shapes, isas)
            chosen = {
                weight_format: quickest(figures[weight_format], found)
                for weight_format, found in isas.items()
            }
            _log.info("kernels measured", chosen=chosen, **_told(figures))
            keep_measured(path, _Kept(facts=facts, chosen=chosen))
        return chosen


def by_name(products: Products, isa: str) -> dict[str, str]:
    """Returns one instruction set for all forms of a model's weights."""
    return dict.fromkeys((matrix.weight_format for matrix in products.matrices()), isa)


def candidates(weight_format: str, best: str) -> list[str]:
    """Returns the instruction sets to choose from, the best by its name first.

    All take rows as the best one does, since others would be converted by each thread.
    """
    found = [best]
    for isa in _ISAS:
        fits = isa not in _OF_INTEGERS or weight_format in _COARSE
        if isa != best and fits and _kernels.has_isa(isa):
            found.append(isa)
    wanted = _input_type(weight_format, best)
    return [isa for isa in found if _input_type(weight_format, isa) == wanted]


def representative_shapes(products: Products) -> list[Shape]:
    """Returns the largest matrix of each form."""
    by_size = sorted(products.matrices(), key=lambda matrix: matrix.num_out * matrix.num_in)
    found = {
        matrix.weight_format: Shape(
            num_out=matrix.num_out, num_in=matrix.num_in, weight_format=matrix.weight_format
        )
        for matrix in by_size
    }
    return [found[weight_format] for weight_format in sorted(found)]


def quickest(figures: Mapping[str, Sequence[float]], isas: Sequence[str]) -> str:
    """Returns what takes least, or the first one where none is quicker by a tenth."""
    least = {isa: mean_s(figures[isa]) for isa in isas}
    other = min(isas, key=lambda isa: least[isa])
    return other if least[other] * _MIN_GAIN < least[isas[0]] else isas[0]


def _input_type(weight_format: str, isa: str) -> str:
    return _kernels.PackedMatrix(1, 32, weight_format=weight_format, isa=isa).input_type


def _facts(shapes: Sequence[Shape], num_threads: int) -> str:
    """Returns all that decides how long products take."""
    facts = {
        "processor": _processor(),
        "threads": num_threads,
        "library": library_identity(),
        "shapes": [(shape.weight_format, shape.num_out, shape.num_in) for shape in shapes],
    }
    return json.dumps(facts)


_TELLING: Final = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


def _processor() -> list[str]:
    """Returns what Linux tells of the first processor; nothing where that can't be read."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    first, _, _ = text.partition("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return [value.strip() for name, _, value in fields if name.strip() in _TELLING]


def _read(path: Path, facts: str, isas: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """Returns what was kept; None where that isn't for these facts and candidates."""
    kept = read_measured(path, _Kept)
    if kept is None:
        return None
    fits = kept.facts == facts and kept.chosen.keys() == isas.keys()
    if not fits or any(kept.chosen[each] not in found for each, found in isas.items()):
        _log.warning("measured kernels are another machine's", file=str(path))
        return None
    return kept.chosen


def _told(figures: Figures) -> dict[str, str]:
    """Returns what to log: microseconds by form, instruction set and number of rows."""
    rows = "/".join(map(str, ROW_COUNTS))
    return {
        f"{weight_format}_us_{rows}_rows": ", ".join(
            f"{isa} {'/'.join(f'{each * 1e6:.0f}' for each in times)}"
            for isa, times in by_isa.items()
        )
        for weight_format, by_isa in figures.items()
    }
