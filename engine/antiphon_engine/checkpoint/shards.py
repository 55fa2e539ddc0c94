"""Where each tensor of a checkpoint lies: one safetensors file, or several."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from safetensors import SafetensorError, safe_open

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.blocks import read_kinds
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.float8 import Float8Format, parse_float8

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The tensors of a checkpoint, by name, and the file that holds each."""

    files: Mapping[str, Path]
    """Tensor name to file."""
    size_bytes: int
    kinds: Mapping[str, str] = field(default_factory=dict)
    """GGML types of the tensors that are stored in blocks."""
    float8: Float8Format | None = None
    """How its 8-bit floats are scaled; None: it has none."""

    def by_file(self) -> dict[Path, list[str]]:
        """Returns the tensor names of each file, files in order of their names."""
        names: dict[Path, list[str]] = {path: [] for path in sorted(set(self.files.values()))}
        for name, path in self.files.items():
            names[path].append(name)
        return names


def find_shards(directory: Path) -> Shards:
    """Reads the headers of a checkpoint's files, and of them alone: no weights.

    Files that belong to no part of the checkpoint are ignored with a warning.

    Raises:
        StartupError: a file or a tensor is missing, twice there or unreadable, or the checkpoint
            is quantized in a way that isn't supported.
    """
    index = directory / INDEX_NAME
    files = _read_index(directory, index) if index.exists() else _read_all(directory)
    used = set(files.values())
    strays = sorted(path.name for path in directory.glob("*.safetensors") if path not in used)
    if strays:
        _log.warning("files are not the checkpoint's", folder=str(directory), files=strays)
    kinds: dict[str, str] = {}
    for path in sorted(used):
        kinds |= _kinds(path)
    size_bytes = sum(path.stat().st_size for path in used)
    config = directory / "config.json"
    float8 = parse_float8(Fields.read(config)) if config.is_file() else None
    return Shards(files=files, size_bytes=size_bytes, kinds=kinds, float8=float8)


def names_of_type(shards: Shards, dtype: str) -> set[str]:
    """Returns the tensors that are stored as a type, by what safetensors files call it."""
    names: set[str] = set()
    for path, held in shards.by_file().items():
        with safe_open(path, framework="np") as file:
            names |= {name for name in held if file.get_slice(name).get_dtype() == dtype}
    return names


def stored_kinds(directory: Path) -> dict[str, str]:
    """Returns the GGML types of a checkpoint's tensors in blocks, by name.

    Files that can't be read are passed over: `find_shards` tells of them.

    Raises:
        StartupError: a file names a type that isn't read.
    """
    kinds: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with suppress(SafetensorError, OSError):
            kinds |= _kinds(path)
    return kinds


def name_some(names: Iterable[str]) -> str:
    """Returns the first few of many names and how many there are."""
    ordered = sorted(names)
    more = ", …" if len(ordered) > 3 else ""
    return f"{', '.join(ordered[:3])}{more} ({len(ordered)} in all)"


def _read_index(directory: Path, index: Path) -> dict[str, Path]:
    weight_map = (Fields.read(index).nested("weight_map") or Fields({}, index.name)).string_map()
    if not weight_map:
        raise StartupError(f"{index} names no tensors")
    escaping = {file for file in weight_map.values() if Path(file).name != file}
    if escaping:
        raise StartupError(f"{index} names files outside its folder: {name_some(escaping)}")
    missing = {file for file in weight_map.values() if not (directory / file).is_file()}
    if missing:
        raise StartupError(
            f"{directory} lacks files that {index.name} names: {name_some(missing)}; "
            "fetch the checkpoint again"
        )
    for file in sorted(set(weight_map.values())):
        held = set(_tensor_names(directory / file))
        indexed = {name for name, holder in weight_map.items() if holder == file}
        if indexed - held:
            raise StartupError(
                f"{index.name} names tensors that {file} doesn't hold: {name_some(indexed - held)}"
            )
        if held - indexed:
            raise StartupError(
                f"{file} holds tensors that {index.name} doesn't name: {name_some(held - indexed)}"
            )
    return {name: directory / file for name, file in weight_map.items()}


def _read_all(directory: Path) -> dict[str, Path]:
    single = directory / SINGLE_NAME
    paths = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not paths:
        raise StartupError(f"{directory} holds no .safetensors file: only that format is read")
    files: dict[str, Path] = {}
    for path in paths:
        for name in _tensor_names(path):
            if name in files:
                raise StartupError(f"{name} is both in {files[name].name} and in {path.name}")
            files[name] = path
    return files


def _tensor_names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise StartupError(f"{path} is no whole safetensors file: {error}") from error


def _kinds(path: Path) -> dict[str, str]:
    with safe_open(path, framework="np") as file:
        return read_kinds(file.metadata(), path.name)
