"""Kernels are run by Triton's interpreter on the CPU, in float32, or on a device.

`make test-kernels` does the first: the interpreter has to be chosen before anything imports Triton,
so these tests have a process of their own. It takes a millisecond for each operation of a program:
what another test tries in part is left to devices.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES = (torch.float32,) if IS_INTERPRETED else (torch.float32, torch.bfloat16)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    is_test = collection_path.name.startswith("test_")
    return True if is_test and not _can_run() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if IS_INTERPRETED or not _can_run():
        return
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.device)


def _can_run() -> bool:
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and (IS_INTERPRETED or torch.cuda.is_available())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(11)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if IS_INTERPRETED else "cuda")


@pytest.fixture(params=_TYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    kind: torch.dtype = request.param
    return kind


@pytest.fixture
def tolerance(dtype: torch.dtype) -> float:
    """Of the relative error."""
    return 2e-5 if dtype is torch.float32 else 1e-2
