import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from antiphon_engine.cuda.choices import FIXED
from antiphon_engine.cuda.kernels.products import Product, Workspace
from antiphon_engine.cuda.measured_choices import MeasuredChoices, product_choices
from antiphon_engine.cuda.measuring import ProductKind, StepTuner
from antiphon_engine.cuda.step_products import ProductRunner

CPU = torch.device("cpu")


def _no_step(num_rows: int) -> Callable[[], None]:
    raise RuntimeError(f"no step of {num_rows} rows can be captured")


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
