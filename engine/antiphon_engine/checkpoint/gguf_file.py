"""Reads a GGUF file: facts, and tensors as they are stored.

The gguf package's reader makes four arrays of each word of a vocabulary, which takes longer than
all else of a conversion. Here the words are passed over: whoever makes the tokenizer reads them.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType
from gguf.quants import quant_shape_to_byte_shape
from numpy.typing import NDArray

Scalar: TypeAlias = int | float | bool | str

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 4
_MAX_DEPTH: Final = 8
"""Of lists within lists."""
_SCALARS: Final = MappingProxyType(
    {
        GGUFValueType.UINT8: "<B",
        GGUFValueType.INT8: "<b",
        GGUFValueType.UINT16: "<H",
        GGUFValueType.INT16: "<h",
        GGUFValueType.UINT32: "<I",
        GGUFValueType.INT32: "<i",
        GGUFValueType.FLOAT32: "<f",
        GGUFValueType.BOOL: "<?",
        GGUFValueType.UINT64: "<Q",
        GGUFValueType.INT64: "<q",
        GGUFValueType.FLOAT64: "<d",
    }
)
_PLAIN: Final = MappingProxyType({GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the file."""

    name: str
    kind: GGMLQuantizationType
    shape: Sequence[int]
    """Of its values, rows first."""
    data: NDArray[np.generic]
    """Values where they are plain, else the bytes of their blocks; still in the file."""

    @property
    def num_values(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """What a file holds."""

    facts: Mapping[str, Scalar]
    """Without lists."""
    lengths: Mapping[str, int]
    """How many entries each list has."""
    tensors: Sequence[StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Reads the file, but for the values of its tensors.

    Raises:
        ValueError: it is not whole, or not such a file.
        OSError: it can't be read.
    """
    try:
        return _read(np.memmap(path, dtype=np.uint8, mode="r"))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _read(content: NDArray[np.uint8]) -> GgufFile:
    cursor = _Cursor(content)
    if content[: len(_MAGIC)].tobytes() != _MAGIC:
        raise ValueError("it doesn't begin with GGUF")
    cursor.offset = len(_MAGIC)
    version = cursor.integer("<I")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}; supported: 2, 3, little-endian")
    num_tensors, num_facts = cursor.integer("<Q"), cursor.integer("<Q")
    facts: dict[str, Scalar] = {}
    lengths: dict[str, int] = {}
    for _ in range(num_facts):
        name = cursor.text()
        kind = GGUFValueType(cursor.integer("<I"))
        if kind is GGUFValueType.ARRAY:
            lengths[name] = cursor.pass_list()
        else:
            facts[name] = cursor.value(kind)
    places = [_Place.read(cursor) for _ in range(num_tensors)]
    alignment = facts.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment}")
    start = -(-cursor.offset // alignment) * alignment
    if len({place.name for place in places}) < len(places):
        raise ValueError("it has two tensors of one name")
    tensors = [place.tensor(content, start) for place in places]
    return GgufFile(facts=facts, lengths=lengths, tensors=tensors)


class _Cursor:
    """A place in the content, which reading moves on. Sizes are whatever a file says."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self._bytes = content.data
        self.offset = 0

    def integer(self, form: str) -> int:
        return int(self._scalar(form))

    def text(self) -> str:
        begin = self._pass(self.integer("<Q"))
        return str(self._bytes[begin : self.offset], "utf-8")

    def value(self, kind: GGUFValueType) -> Scalar:
        return self.text() if kind is GGUFValueType.STRING else self._scalar(_SCALARS[kind])

    def pass_list(self, depth: int = 1) -> int:
        """Passes over a list and returns its length."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"it has lists within each other, more than {_MAX_DEPTH} deep")
        kind = GGUFValueType(self.integer("<I"))
        length = self.integer("<Q")
        if kind in _SCALARS:
            self._pass(length * struct.calcsize(_SCALARS[kind]))
        else:
            for _ in range(length):
                self._pass_entry(kind, depth)
        return length

    def _pass_entry(self, kind: GGUFValueType, depth: int) -> None:
        if kind is GGUFValueType.ARRAY:
            self.pass_list(depth + 1)
        else:
            self._pass(self.integer("<Q"))

    def _scalar(self, form: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from(form, self._bytes, self.offset)
        self.offset += struct.calcsize(form)
        return value

    def _pass(self, num_bytes: int) -> int:
        """Passes over bytes and returns where they begin; raises ValueError past the end."""
        begin = self.offset
        if num_bytes > len(self._bytes) - begin:
            raise ValueError("it ends within its list of facts or tensors")
        self.offset = begin + num_bytes
        return begin


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is, as the file's list says."""

    name: str
    shape: Sequence[int]
    kind: GGMLQuantizationType
    offset: int

    @classmethod
    def read(cls, cursor: _Cursor) -> "_Place":
        name = cursor.text()
        num_dimensions = cursor.integer("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"{name} has {num_dimensions} dimensions")
        sizes = [cursor.integer("<Q") for _ in range(num_dimensions)]
        if 0 in sizes:
            raise ValueError(f"{name} has no values")
        kind = GGMLQuantizationType(cursor.integer("<I"))
        return cls(name, tuple(reversed(sizes)), kind, cursor.integer("<Q"))

    def tensor(self, content: NDArray[np.uint8], start: int) -> StoredTensor:
        """Returns the tensor; `start` is where all tensors begin."""
        shape = tuple(self.shape)
        is_plain = self.kind in _PLAIN
        stored = shape if is_plain else quant_shape_to_byte_shape(shape, self.kind)
        dtype = np.dtype(_PLAIN[self.kind] if is_plain else "u1")
        begin = start + self.offset
        end = begin + math.prod(stored) * dtype.itemsize
        if end > len(content):
            raise ValueError(f"it ends within {self.name}")
        data = content[begin:end].view(np.ndarray).view(dtype).reshape(stored)
        return StoredTensor(self.name, self.kind, shape, data)
