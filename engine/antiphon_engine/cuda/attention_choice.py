"""Which backend attends to chunks: asked for by name, or measured at the start."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import structlog
import torch

from antiphon_engine.api.errors import StartupError
from antiphon_engine.cuda.attention_backend import AttentionBackend, AttentionShape
from antiphon_engine.cuda.attention_timing import ChunkTimer
from antiphon_engine.cuda.choices import tile_tokens
from antiphon_engine.cuda.flashinfer_attention import FLASHINFER, FlashInferBackend
from antiphon_engine.cuda.flashinfer_library import (
    FlashInferError,
    FlashInferLibrary,
    PrefillLibrary,
)
from antiphon_engine.cuda.kernels.paged_attention import Heads
from antiphon_engine.cuda.measured_choices import MeasuredChoices, attention_choices
from antiphon_engine.cuda.step_attention import AttentionMaker
from antiphon_engine.cuda.triton_attention import TRITON, TritonBackend, TritonOptions
from antiphon_engine.device import Device
from antiphon_engine.kv_tensors import NARROW

_log = structlog.get_logger(__name__)

_HOPPER: Final = (9, 0)
_GAIN: Final = 0.98
"""What another backend must come to, of the own one: less is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """What attention has to be, by the settings and the model."""

    shape: AttentionShape
    backend: str
    """As `engine.attention_backend` names it."""
    is_fixed: bool
    """Whether a token's numbers may not depend on what is beside it."""
    max_rows: int
    """Of one token each, in a step."""


def make_attention(
    heads: Heads, needs: AttentionNeeds, *, overlap: bool, device: torch.device
) -> AttentionMaker:
    """Returns what makes the attention of steps. Raises StartupError as `open_backends`."""
    max_rows, is_fixed = needs.max_rows, needs.is_fixed
    options = TritonOptions(
        is_fixed=is_fixed,
        overlap=overlap,
        is_narrow=needs.shape.kv_dtype is NARROW,
        tile_tokens=tile_tokens(needs.shape, has_copy_engine=_has_copy_engine(device)),
    )
    own = TritonBackend.allocate(heads, options, max_rows=max_rows, device=device)
    backends = open_backends(needs, own, Device(device.type))
    return AttentionMaker.allocate(backends, max_rows=max_rows, is_fixed=is_fixed, device=device)


def _has_copy_engine(device: torch.device) -> bool:
    """Whether tiles of the cache can be brought by one instruction each: since Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER


def tune_attention(
    maker: AttentionMaker, shape: AttentionShape, timer: ChunkTimer, *, cache_dir: Path | None
) -> None:
    """Chooses what attends from now on; waits for the device, where that is to be measured."""
    if len(maker.backends) == 1:
        return
    versions = [backend.version for backend in maker.backends]
    known = attention_choices(cache_dir, torch.cuda.get_device_name(), versions)
    key = choice_key(shape, len(timer.qkv_TQ))
    maker.backend = choose_backend(maker.backends, timer.time_ms, known=known, key=key)
    known.save()


def open_backends(
    needs: AttentionNeeds,
    own: AttentionBackend,
    device: Device,
    *,
    find: Callable[[], PrefillLibrary] = FlashInferLibrary.find,
) -> tuple[AttentionBackend, ...]:
    """Returns the backends to choose from; the first serves until one is chosen.

    Args:
        needs: What they have to be.
        own: The engine's own.
        device: Where.
        find: Finds FlashInfer.

    Raises:
        StartupError: FlashInfer is asked for, and can't serve here.
    """
    is_asked_for = needs.backend == FLASHINFER
    if not is_asked_for and (needs.backend == TRITON or needs.is_fixed):
        return (own,)
    try:
        if needs.is_fixed:
            raise FlashInferError("engine.deterministic is served by triton alone")
        other = FlashInferBackend.open(own, needs.shape, device, find)
    except FlashInferError as error:
        if is_asked_for:
            raise StartupError(
                f"engine.attention_backend = {FLASHINFER} can't be served here: {error}"
            ) from error
        _log.info("own kernels attend", reason=str(error))
        return (own,)
    return (other,) if is_asked_for else (own, other)


def choose_backend(
    backends: Sequence[AttentionBackend],
    time_ms: Callable[[AttentionBackend], float],
    *,
    known: MeasuredChoices[str],
    key: str,
) -> AttentionBackend:
    """Returns the fastest backend, as it is known or as it is measured now.

    Args:
        backends: Of which the first serves where another isn't clearly faster.
        time_ms: Measures one.
        known: Choices of earlier starts; gets this one.
        key: What the choice depends on beside device and libraries.
    """
    by_name = {backend.name: backend for backend in backends}
    if key in known and known[key] in by_name:
        return by_name[known[key]]
    try:
        first_ms, *other_ms = [time_ms(backend) for backend in backends]
    except RuntimeError as error:
        # What can't be measured must not keep a model from being served.
        _log.warning("attention is not tuned", error=str(error))
        return backends[0]
    best = min(zip(other_ms, backends[1:], strict=True), key=lambda pair: pair[0])
    chosen = best[1] if best[0] < _GAIN * first_ms else backends[0]
    known[key] = chosen.name
    _log.info(
        "attention of prompts is measured",
        chosen=chosen.name,
        times_ms=[round(spent_ms, 3) for spent_ms in (first_ms, *other_ms)],
    )
    return chosen


def choice_key(shape: AttentionShape, num_tokens: int) -> str:
    """Returns what stands for a shape and the tokens of a step among the measured choices."""
    parts = " ".join(map(str, (*astuple(shape), num_tokens)))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
