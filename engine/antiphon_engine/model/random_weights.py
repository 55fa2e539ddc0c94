"""Weights from a seed in place of a checkpoint's: for measuring shapes without their weights."""

from collections.abc import Mapping

import torch

from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.model.weights import ParameterSink, WeightTarget

_SPREAD = 0.02
"""Of matrices and biases, as models are initialised: activations stay finite in any depth."""


def fill_randomly(
    targets: Mapping[str, WeightTarget], *, seed: int, on_progress: OnProgress
) -> None:
    """Fills every target: norms with ones, all else with normal values.

    Parameters are filled where they lie, so that a device makes its own. The same seed makes the
    same weights on one kind of device, whatever the order of the targets.
    """
    for done, name in enumerate(sorted(targets), start=1):
        target = targets[name]
        if isinstance(target.sink, ParameterSink):
            _fill(target.sink.destination, name, seed + done)
        else:
            part = tuple(
                len(range(size)[span])
                for size, span in zip(target.source_shape, target.source_part, strict=True)
            )
            values = torch.empty(part, dtype=torch.float32, device="cpu")
            _fill(values, name, seed + done)
            target.sink.store(values)
        on_progress("load", done, len(targets))


def _fill(values: torch.Tensor, name: str, seed: int) -> None:
    if "norm" in name:
        values.fill_(1.0)
    else:
        generator = torch.Generator(device=values.device).manual_seed(seed)
        values.normal_(0.0, _SPREAD, generator=generator)
