"""What was measured at starts, on disk.

A choice holds for the device, the libraries, the shape and the number of rows that it was measured
with, and for nothing else.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import torch
import triton

from antiphon_engine.cuda.kernels.products import ProductConfig
from antiphon_engine.measured_file import keep_measured, read_measured

_FORMAT: Final = 1

_Choice = TypeVar("_Choice")


@dataclass(frozen=True, slots=True)
class MeasuredChoices(Generic[_Choice]):
    """Choices of one device and its libraries, and the file in which they are kept."""

    path: Path | None
    _known: dict[str, _Choice]

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> _Choice:
        return self._known[key]

    def __setitem__(self, key: str, choice: _Choice) -> None:
        self._known[key] = choice

    def save(self) -> None:
        """Writes the file, if there is one. What can't be written is measured again next time."""
        if self.path is not None:
            keep_measured(self.path, self._known)


def product_choices(
    cache_dir: Path | None, device_name: str
) -> MeasuredChoices[ProductConfig | None]:
    """Reads how products are divided; knows nothing, where there is no file that can be read."""
    path = _path(cache_dir, "products", [device_name])
    return MeasuredChoices(path, _read(path, dict[str, ProductConfig | None]))


def attention_choices(
    cache_dir: Path | None, device_name: str, backend_versions: Sequence[str]
) -> MeasuredChoices[str]:
    """Reads which backends attend; knows nothing, where there is no file that can be read.

    Args:
        cache_dir: Where choices are kept; None: nowhere.
        device_name: What they were measured on.
        backend_versions: Of the backends that there are to choose from.
    """
    path = _path(cache_dir, "attention", [device_name, *backend_versions])
    return MeasuredChoices(path, _read(path, dict[str, str]))


def _path(cache_dir: Path | None, kind: str, measured_with: list[str]) -> Path | None:
    if cache_dir is None:
        return None
    versions = [*measured_with, torch.__version__, triton.__version__, str(_FORMAT)]
    digest = hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]
    return cache_dir / f"cuda-{kind}-{digest}.json"


def _read(path: Path | None, kind: type[dict[str, _Choice]]) -> dict[str, _Choice]:
    known = None if path is None else read_measured(path, kind)
    return {} if known is None else known
