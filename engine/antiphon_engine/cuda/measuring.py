"""Measures in which way each product is fastest.

A product is measured with the weights of all layers in turn, as a step reads them: those of one
layer alone would stay in the device's cache. Launches are captured, since a step's are.

Shape suffixes: M rows, K input features, N output features.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton import AsyncCompileMode

from antiphon_engine.cuda.choices import MeasuredChoices, candidates, choice_key
from antiphon_engine.cuda.kernels.products import Product, ProductConfig, Workspace, multiply
from antiphon_engine.cuda.step_buffers import StepBuffers
from antiphon_engine.cuda.step_products import ProductRunner, multiply_many, row_bound

_ROTATED_BYTES: Final = 160 << 20
"""Weights that a measurement reads at least: more than the device's cache holds."""
_NUM_REPLAYS: Final = 7
_NUM_COMPILERS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProduct:
    """One product of all layers."""

    layers: Sequence[Product]
    x_MK: Tensor
    y_MN: Tensor
    scratch: StepBuffers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTuner:
    """Chooses configurations by measuring, within a time."""

    runner: ProductRunner
    """Takes the choices."""
    buffers: StepBuffers
    """Of random use: what they hold is overwritten."""
    logits_SV: Tensor
    known: MeasuredChoices
    deadline: float
    """By `time.monotonic`: what comes later keeps its default."""

    def choose(self, kind: str, layers: Sequence[Product], num_rows: int) -> None:
        """Chooses for a product of up to so many rows, which the buffers hold."""
        product, overlap = layers[0], self.runner.overlap
        num_rows = min(num_rows, len(self.buffers.hidden_TH))
        is_head = product.num_out == self.logits_SV.shape[1]
        num_rows = min(num_rows, len(self.logits_SV)) if is_head else num_rows
        out = self.logits_SV if is_head else None
        measured = self._measured(layers, num_rows, out)
        key = choice_key(product, num_rows, out_dtype=measured.y_MN.dtype, overlap=overlap)
        if key not in self.known:
            if time.monotonic() > self.deadline:
                return
            self.known[key] = fastest(
                measured,
                candidates(product, num_rows),
                workspace=self.runner.workspace,
                overlap=overlap,
                deadline=self.deadline,
            )
        bound = row_bound(num_rows)
        assert bound is not None
        self.runner.choices[kind][bound] = self.known[key]

    def _measured(
        self, layers: Sequence[Product], num_rows: int, out: Tensor | None
    ) -> MeasuredProduct:
        product = layers[0]
        x_MK = torch.empty(
            (num_rows, product.num_in),
            dtype=product.weight_NK.dtype,
            device=product.weight_NK.device,
        ).normal_()
        y_MN = x_MK.new_zeros((num_rows, product.num_out)) if out is None else out[:num_rows]
        return MeasuredProduct(
            layers=layers, x_MK=x_MK, y_MN=y_MN, scratch=self.buffers.first(num_rows)
        )


def fastest(
    measured: MeasuredProduct,
    configs: Iterable[ProductConfig],
    *,
    workspace: Workspace,
    overlap: bool,
    deadline: float,
) -> ProductConfig | None:
    """Returns the fastest configuration, None where cuBLAS is; waits for the device.

    Args:
        measured: What to compute. `y_MN` is overwritten.
        configs: What to try; those that don't compile on this device are left out.
        workspace: One that fits; others are left out.
        overlap: Whether kernels start before those in front of them have ended.
        deadline: By `time.monotonic`: what isn't measured by then is left out.
    """
    first = measured.layers[0]
    num_rows = measured.x_MK.shape[0]
    usable = [config for config in configs if workspace.fits(first, num_rows, config)]
    _compile(measured, usable, workspace, overlap=overlap)
    best, best_ms = None, _time_ms(_cublas(measured, overlap=overlap), measured.layers)
    for config in usable:
        if time.monotonic() > deadline:
            break
        try:
            launch = _own(measured, config, workspace, overlap=overlap)
            spent_ms = _time_ms(launch, measured.layers)
        except (RuntimeError, ValueError):  # too much shared memory, say
            continue
        if spent_ms < best_ms:
            best, best_ms = config, spent_ms
    return best


def _compile(
    measured: MeasuredProduct,
    configs: Sequence[ProductConfig],
    workspace: Workspace,
    *,
    overlap: bool,
) -> None:
    """Compiles what will be measured, side by side."""
    executor = ThreadPoolExecutor(_NUM_COMPILERS)
    with executor, AsyncCompileMode(executor, ignore_errors=True):
        for config in configs:
            multiply(
                measured.layers[0],
                measured.x_MK,
                measured.y_MN,
                config=config,
                workspace=workspace,
                overlap=overlap,
                only_compile=True,
            )


def _cublas(measured: MeasuredProduct, *, overlap: bool) -> Callable[[Product], None]:
    def launch(product: Product) -> None:
        multiply_many(product, measured.x_MK, measured.y_MN, measured.scratch, overlap=overlap)

    return launch


def _own(
    measured: MeasuredProduct, config: ProductConfig, workspace: Workspace, *, overlap: bool
) -> Callable[[Product], None]:
    def launch(product: Product) -> None:
        multiply(
            product,
            measured.x_MK,
            measured.y_MN,
            config=config,
            workspace=workspace,
            overlap=overlap,
        )

    return launch


def _time_ms(launch: Callable[[Product], None], layers: Sequence[Product]) -> float:
    """Returns the median time of one pass over all layers."""
    num_bytes = sum(product.weight_NK.nbytes for product in layers)
    num_passes = -(-_ROTATED_BYTES // num_bytes)

    def run() -> None:
        for _ in range(num_passes):
            for product in layers:
                launch(product)

    launch(layers[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times: list[float] = []
    for _ in range(_NUM_REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[1:])[_NUM_REPLAYS // 2] / num_passes
