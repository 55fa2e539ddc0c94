"""How positions are rotated into queries and keys, as a checkpoint's configuration says it."""

import enum
from dataclasses import dataclass

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.fields import Fields


class RopeKind(enum.StrEnum):
    """The ways of stretching positions beyond the length that a model was trained on."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    """Served up to the trained length only: beyond it the angles of one position depend on the
    length of the whole text, so that nothing computed before could be kept."""
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Parameters of rotary embeddings; which apply depends on `kind`."""

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = 10_000.0
    factor: float = 1.0
    original_context_tokens: int = 0
    """The length before stretching; for LLAMA3 and YARN."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    """YARN: what cosine and sine are multiplied with; None: follows from the factor and mscale."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def parse_rope_config(config: Fields) -> RopeConfig:
    """Reads the scaling under any of its names: rope_parameters, rope_scaling; rope_type, type.

    Raises:
        StartupError: the type is not one of RopeKind, or a parameter of it is absent or no number.
    """
    rope = config.nested("rope_parameters") or config.nested("rope_scaling") or Fields({}, "rope")
    rope = rope.nested("full_attention") or rope
    theta = rope.number("rope_theta", config.number("rope_theta", 10_000.0))
    if rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise StartupError("the checkpoint's partial_rotary_factor is not 1: not supported")
    kind = _parse_kind(rope.text("rope_type", rope.text("type", RopeKind.DEFAULT)))
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta=theta)

    factor = rope.number("factor")
    if factor < 1.0:
        raise StartupError(f"the checkpoint's rope factor is {factor:g}, but must be at least 1")
    if kind in (RopeKind.LINEAR, RopeKind.DYNAMIC):
        return RopeConfig(kind=kind, theta=theta, factor=factor)
    original = _original_context_tokens(config, rope)
    if kind is RopeKind.LLAMA3:
        return RopeConfig(
            kind=kind,
            theta=theta,
            factor=factor,
            original_context_tokens=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    return RopeConfig(
        kind=kind,
        theta=theta,
        factor=factor,
        original_context_tokens=original,
        attention_factor=rope.number("attention_factor") if "attention_factor" in rope else None,
        mscale=rope.number("mscale", 0.0),
        mscale_all_dim=rope.number("mscale_all_dim", 0.0),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.boolean("truncate", True),
    )


def stretched_context_tokens(rope: RopeConfig, max_position_embeddings: int) -> int:
    """Returns how long a text may be, with the stretching that configurations don't count in."""
    if rope.kind is RopeKind.LINEAR:
        return int(max_position_embeddings * rope.factor)
    if rope.kind is RopeKind.YARN:
        return max(max_position_embeddings, int(rope.original_context_tokens * rope.factor))
    return max_position_embeddings


def _parse_kind(name: str) -> RopeKind:
    try:
        return RopeKind(name)
    except ValueError:
        known = ", ".join(RopeKind)
        message = f"the checkpoint's rope type {name!r} is not supported; supported: {known}"
        raise StartupError(message) from None


def _original_context_tokens(config: Fields, rope: Fields) -> int:
    # Some checkpoints keep it outside the scaling; there it has priority, as in transformers.
    inside = rope.integer(
        "original_max_position_embeddings", config.integer("max_position_embeddings")
    )
    return config.integer("original_max_position_embeddings", inside)
