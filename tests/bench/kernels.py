"""Measures the products of one step of the default model on one thread, beside oneDNN's.

Figures are processor time, so that others on the machine count less; ours and torch's alternate,
and the least of a few rounds stands. The last line is one JSON object.
"""

import argparse
import ctypes
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

HIDDEN: Final = 896
LAYER: Final = ((1152, HIDDEN, 0), (HIDDEN, HIDDEN, 0), (2 * 4864, HIDDEN, 1), (HIDDEN, 4864, 0))
"""Of each product the outputs, the inputs, and whether rows are gates and ups."""
HEAD: Final = (151_936, HIDDEN, 0)
FORMATS: Final = ("f32", "bf16", "int8", "int6", "int5", "int4")
ISAS: Final = ("portable", "avx2", "avx512", "avx512_bf16", "amx", "avx_vnni", "avx512_vnni")


class Native:
    """The functions of products.cc."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.make_matrix.restype = ctypes.c_void_p
        self._library.make_matrix.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_int] * 3
        self._library.free_matrix.argtypes = [ctypes.c_void_p]
        self._library.matrix_bytes.restype = ctypes.c_int64
        self._library.matrix_bytes.argtypes = [ctypes.c_void_p]
        self._library.multiply.restype = ctypes.c_double
        self._library.read_memory.restype = ctypes.c_double

    def best_isa(self) -> int:
        return int(self._library.best())

    def make(self, shape: tuple[int, int, int], weights: str, isa: int) -> int:
        out, width, order = shape
        return int(self._library.make_matrix(out, width, FORMATS.index(weights), order, isa))

    def free(self, matrices: list[int]) -> None:
        for matrix in matrices:
            self._library.free_matrix(matrix)

    def num_bytes(self, matrices: list[int]) -> int:
        return sum(self._library.matrix_bytes(matrix) for matrix in matrices)

    def multiply(self, matrices: list[int], rows: int) -> float:
        array = (ctypes.c_void_p * len(matrices))(*matrices)
        wall = ctypes.c_double()
        return float(
            self._library.multiply(
                array, ctypes.c_int64(len(matrices)), ctypes.c_int64(rows), ctypes.byref(wall)
            )
        )

    def bytes_per_s(self) -> float:
        size = 1 << 30
        wall = ctypes.c_double()
        return size / float(self._library.read_memory(ctypes.c_int64(size), ctypes.byref(wall)))


@dataclass(frozen=True, slots=True)
class Reordered:
    """torch's products over weights in oneDNN's own order."""

    weights: list[Tensor]

    @classmethod
    def make(cls, shapes: list[tuple[int, int, int]], rows: int) -> "Reordered":
        reorder = torch.ops.mkldnn._reorder_linear_weight
        return cls(
            [reorder((torch.randn(out, width) * 0.05).bfloat16(), rows) for out, width, _ in shapes]
        )

    def multiply(self, shapes: list[tuple[int, int, int]], rows: int) -> float:
        inputs = {width: torch.randn(rows, width).bfloat16() for _, width, _ in shapes}
        linear = torch.ops.mkldnn._linear_pointwise
        taken = 0.0
        for warm in (True, False):
            count = 2 if warm else len(shapes)
            begin = time.thread_time()
            for (_, width, _), weight in zip(shapes[:count], self.weights, strict=False):
                linear(inputs[width], weight, None, "none", [], "")
            taken = time.thread_time() - begin
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--rows", default="1,4,16,64,512")
    parser.add_argument("--formats", default="bf16,int8,int4")
    parser.add_argument("--isa", default="", help="; ".join(ISAS) + "; default: the best here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--without-torch", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    native = Native(arguments.library)
    isa = ISAS.index(arguments.isa) if arguments.isa else native.best_isa()
    figures: dict[str, object] = {"isa": ISAS[isa]}
    for rows in [int(text) for text in arguments.rows.split(",")]:
        # A prompt's step computes the head for its last row only.
        shapes = [*LAYER] * arguments.layers + ([HEAD] if rows <= 64 else [])
        weights = sum(out * width for out, width, _ in shapes)
        peer = None if arguments.without_torch else Reordered.make(shapes, rows)
        for weight_format in arguments.formats.split(","):
            ours = [native.make(shape, weight_format, isa) for shape in shapes]
            size = native.num_bytes(ours)
            times, peer_times, rates = [], [], []
            for _ in range(arguments.rounds):
                rates.append(native.bytes_per_s())
                times.append(native.multiply(ours, rows))
                if peer is not None:
                    peer_times.append(peer.multiply(shapes, rows))
            native.free(ours)
            best = min(times)
            print(
                f"{weight_format:5} {rows:4} rows: {best * 1e3:8.2f} ms, "
                f"{2e-9 * weights * rows / best:7.1f} GFLOP/s, {size / best / 1e9:6.2f} GB/s "
                f"of {max(rates) / 1e9:.2f}"
                + (f"; oneDNN bf16 {min(peer_times) * 1e3:8.2f} ms" if peer_times else ""),
                flush=True,
            )
            figures[f"{weight_format}_{rows}_ms"] = round(best * 1e3, 3)
            figures[f"{weight_format}_{rows}_gb_per_s"] = round(size / best / 1e9, 2)
            figures["read_gb_per_s"] = round(max(rates) / 1e9, 2)
            if peer_times:
                figures[f"onednn_bf16_{rows}_ms"] = round(min(peer_times) * 1e3, 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
