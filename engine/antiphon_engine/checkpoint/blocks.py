"""Tensors that a checkpoint keeps in blocks of integers, as GGUF files have them.

Such a tensor is stored as bytes, [rows, bytes of a row]; the file's metadata says which are, and of
which of GGML's types.
"""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.errors import StartupError

METADATA_KEY: Final = "ggml_types"
"""In a file's metadata: a JSON object of tensor names and their types."""

_BLOCKS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "Q4_0": (32, 18),
        "Q5_0": (32, 22),
        "Q8_0": (32, 34),
        "Q4_K": (256, 144),
        "Q5_K": (256, 176),
        "Q6_K": (256, 210),
    }
)
"""Types that are kept: values and bytes of a block."""

KEPT_TYPES: Final = frozenset(_BLOCKS)

_JOINED_BYTES: Final = 8192
"""Rows are joined up to this, by powers of two, before they are expanded."""


def write_kinds(kinds: Mapping[str, str]) -> dict[str, str]:
    """Returns the metadata of a file whose tensors have these types."""
    return {METADATA_KEY: json.dumps(dict(kinds))}


def read_kinds(metadata: Mapping[str, str] | None, file: str) -> dict[str, str]:
    """Returns the types of a file's tensors in blocks, by name.

    Raises:
        StartupError: the metadata is no such object, or names a type that isn't read.
    """
    text = (metadata or {}).get(METADATA_KEY, "{}")
    try:
        kinds = json.loads(text)
    except ValueError:
        kinds = None
    if not isinstance(kinds, dict):
        raise StartupError(f"{METADATA_KEY} in {file} is no JSON object")
    for name, kind in kinds.items():
        if kind not in KEPT_TYPES:
            known = ", ".join(sorted(KEPT_TYPES))
            raise StartupError(f"{name} in {file} is of type {kind!r}; supported: {known}")
    return kinds


def values_shape(name: str, kind: str, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a stored tensor's values. Raises StartupError where blocks are cut."""
    values, num_bytes = _BLOCKS[kind]
    *rows, row_bytes = stored_shape
    if row_bytes % num_bytes:
        raise StartupError(
            f"{name} has rows of {row_bytes} bytes, but blocks of type {kind} have {num_bytes}"
        )
    return (*rows, row_bytes // num_bytes * values)


def expand(kind: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the values of rows of blocks."""
    # Only checkpoints in blocks need the library.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    # It takes a few rows at a time, and short ones cost more in calls than in arithmetic.
    *rows, row_bytes = blocks.shape
    most_joined = 1 << (max(1, _JOINED_BYTES // row_bytes).bit_length() - 1)
    num_joined = math.gcd(math.prod(rows), most_joined)
    joined: NDArray[np.float32] = dequantize(
        blocks.reshape(-1, num_joined * row_bytes), GGMLQuantizationType[kind]
    )
    return joined.reshape(values_shape("", kind, blocks.shape))
