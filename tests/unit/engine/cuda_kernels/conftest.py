"""Kernels are run by Triton's interpreter on the CPU, in float32, or on a device.

`make test-kernels` does the first: the interpreter has to be chosen before anything imports Triton,
so these tests have a process of their own.
"""

import os
from pathlib import Path

import pytest
import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES = (torch.float32,) if IS_INTERPRETED else (torch.float32, torch.bfloat16)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    try:
        import triton  # noqa: F401
    except ImportError:
        return collection_path.name.startswith("test_") or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not IS_INTERPRETED:
            item.add_marker(pytest.mark.device)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device or the interpreter"))


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
