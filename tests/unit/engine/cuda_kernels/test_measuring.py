import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon_engine.cuda.choices import FIXED, candidates
from antiphon_engine.cuda.kernels.products import Product, ProductConfig, Workspace
from antiphon_engine.cuda.measured_choices import MeasuredChoices, product_choices
from antiphon_engine.cuda.measuring import ProductKind, StepTuner
from antiphon_engine.cuda.step_products import ProductRunner

CPU = torch.device("cpu")


def _no_step(num_rows: int) -> Callable[[], None]:
    raise RuntimeError(f"no step of {num_rows} rows can be captured")


class Clock:
    """Steps take less from one to the next; with some choices they take half."""

    def __init__(self, tuner: StepTuner, faster: Collection[ProductConfig]) -> None:
        self._choices = tuner.runner.choices["qkv"]
        self._faster = faster
        self._warmth = 1.0

    def time_ms(self, launch: Callable[[], None]) -> float:
        self._warmth *= 0.99
        return self._warmth * (0.5 if self._choices[16] in self._faster else 1.0)


def _tuner(choices: MeasuredChoices, *, deadline: float = math.inf) -> StepTuner:
    product = Product(weight_NK=torch.zeros(48, 40))
    runner = ProductRunner(workspace=Workspace.allocate(num_partials=1, device=CPU), overlap=False)
    runner.choices["qkv"] = {16: None}
    return StepTuner(
        runner=runner,
        kinds={
            "qkv": ProductKind(product=product, in_dtype=torch.float32, out_dtype=torch.float32)
        },
        make_step=_no_step,
        model_key="model",
        known=choices,
        deadline=deadline,
    )


@pytest.fixture
def choices(tmp_path: Path) -> MeasuredChoices:
    return product_choices(tmp_path, "device")


def test_what_is_known_is_taken_without_measuring(choices) -> None:
    choices["model 16 qkv"] = FIXED
    tuner = _tuner(choices)

    tuner.choose(16, 8)

    assert tuner.runner.choices["qkv"][16] == FIXED


def test_what_cannot_be_measured_keeps_its_default_and_is_not_remembered(choices) -> None:
    tuner = _tuner(choices)

    tuner.choose(16, 8)

    assert tuner.runner.choices["qkv"] == {16: None}
    assert "model 16 qkv" not in choices


def test_without_time_nothing_is_measured(choices) -> None:
    tuner = _tuner(choices, deadline=-math.inf)

    tuner.choose(16, 8)

    assert tuner.runner.choices["qkv"] == {16: None}
    assert "model 16 qkv" not in choices


@pytest.mark.parametrize("chosen", [0, 3])
def test_what_is_faster_is_taken_and_not_what_comes_when_the_device_is_warm(
    choices, chosen
) -> None:
    tuner = _tuner(choices)
    product = Product(weight_NK=torch.zeros(128, 1024))
    default, wanted = candidates(product, 8)[0], candidates(product, 8)[chosen]
    tuner.runner.choices["qkv"][16] = default
    tuner = replace(
        tuner,
        kinds={"qkv": replace(tuner.kinds["qkv"], product=product)},
        make_step=lambda num_rows: lambda: None,
        make_clock=lambda: Clock(tuner, [] if wanted == default else [wanted]),
    )

    tuner.choose(16, 8)

    assert tuner.runner.choices["qkv"][16] == wanted
    assert choices["model 16 qkv"] == wanted
