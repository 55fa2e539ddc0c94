"""Where a model comes from: a directory, a GGUF file, a hub, or the installed default model."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.conversion import cached_directory, convert_gguf
from antiphon_engine.checkpoint.demo import DividedFile, add_sampling_defaults, demo_file, join
from antiphon_engine.checkpoint.hub import Hub, HuggingFaceHub, fetch_checkpoint
from antiphon_engine.checkpoint.progress import OnProgress

DEMO: Final = "demo"

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FORMAT: Final = 3
"""Part of the names in the cache: raised when the conversion changes."""


class Convert(Protocol):
    """Converts a GGUF file into an empty directory; raises StartupError."""

    def __call__(self, source: Path, target: Path, *, tie: bool, progress: OnProgress) -> None:
        """Returns when the directory is a whole checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What models are got with."""

    hub: Hub
    demo: Callable[[], DividedFile] = demo_file
    convert: Convert = convert_gguf


def default_sources() -> Sources:
    """Returns the real ones."""
    return Sources(hub=HuggingFaceHub())


def find_model(model: str, sources: Sources, *, cache_dir: Path, progress: OnProgress) -> Path:
    """Returns the checkpoint directory of a model, after getting or converting it where needed.

    Raises:
        StartupError: there is no such model, or it can't be got.
    """
    path = Path(model).expanduser()
    if model == DEMO:
        return _demo(sources, cache_dir, progress)
    if path.is_file() and path.suffix == ".gguf":
        return _gguf(path.resolve(), sources, cache_dir, progress)
    if model and path.is_dir():
        return path.resolve()
    if model and path.exists():
        raise StartupError(f"{model} is neither a checkpoint directory nor a .gguf file")
    if _HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return fetch_checkpoint(sources.hub, model, progress=progress)
    raise StartupError(
        f"there is no model {model!r}: give a checkpoint directory, a .gguf file, a hub id like "
        f"owner/name, or {DEMO}"
    )


def _demo(sources: Sources, cache_dir: Path, progress: OnProgress) -> Path:
    def fill(target: Path) -> None:
        file = sources.demo()
        gguf = cache_dir / f"{file.name}.gguf"
        join(file, gguf, progress=progress)
        # Its own embedding is a coarser copy of the output matrix: one matrix serves both.
        sources.convert(gguf, target, tie=True, progress=progress)
        add_sampling_defaults(file, target)
        gguf.unlink()

    return cached_directory(cache_dir, f"{DEMO}-{_FORMAT}", fill, progress=progress)


def _gguf(path: Path, sources: Sources, cache_dir: Path, progress: OnProgress) -> Path:
    def fill(target: Path) -> None:
        sources.convert(path, target, tie=False, progress=progress)

    facts = path.stat()
    identity = f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cached_directory(cache_dir, f"{path.stem}-{key}-{_FORMAT}", fill, progress=progress)
