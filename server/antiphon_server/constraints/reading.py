"""Constraints as they come over the wire: what can be said of them without looking into them."""

from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import Constraint

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.constraints.request import JSON_KINDS, ConstraintKind, ConstraintRequest
from antiphon_server.validation_fields import Violations

_TEXT_KINDS: Final = frozenset(
    {
        ConstraintKind.JSON_SCHEMA,
        ConstraintKind.REGEX,
        ConstraintKind.EBNF,
        ConstraintKind.STRUCTURAL_TAG,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintLimits:
    """What a constraint may be, before anyone looks into it."""

    max_size_bytes: int = 256 << 10
    max_choices: int = 4096
    max_blank_characters: int = 16


def check_constraint(
    constraint: Constraint, *, limits: ConstraintLimits, path: str, violations: Violations
) -> None:
    """Adds what is wrong with a constraint, as far as it shows from outside.

    Raises:
        AntiphonError: CONSTRAINT_TOO_COMPLEX, it is too large.
    """
    kind = constraint.WhichOneof("kind")
    if kind is None:
        violations.add(path, "one of its kinds must be set")
        return
    if constraint.HasField("compact_json") and kind not in JSON_KINDS:
        violations.add(f"{path}.compact_json", f"does not go with {kind}")
    if kind in _TEXT_KINDS:
        text = getattr(constraint, kind)
        check_size(len(text.encode()), limits, f"{path}.{kind}")
        if not text:
            violations.add(f"{path}.{kind}", "must not be empty")
    elif kind == "choice":
        _check_options(constraint, limits, f"{path}.choice.options", violations)


def read_constraint(
    constraint: Constraint, *, limits: ConstraintLimits
) -> ConstraintRequest | None:
    """Returns what a checked constraint asks for; None: nothing."""
    name = constraint.WhichOneof("kind")
    if name is None or name == "none":
        return None
    kind = ConstraintKind(name)
    has_blanks = kind in JSON_KINDS and not constraint.compact_json
    return ConstraintRequest(
        kind=kind,
        text=getattr(constraint, name) if kind in _TEXT_KINDS else "",
        options=tuple(constraint.choice.options),
        max_blank=limits.max_blank_characters if has_blanks else 0,
    )


def _check_options(
    constraint: Constraint, limits: ConstraintLimits, path: str, violations: Violations
) -> None:
    options = constraint.choice.options
    if not options:
        violations.add(path, "must have at least one")
    if len(options) > limits.max_choices:
        raise _too_complex(path, f"{len(options)} choices", limits.max_choices, "choices")
    check_size(sum(len(option.encode()) for option in options), limits, path)
    for index, option in enumerate(options):
        if not option:
            violations.add(f"{path}[{index}]", "must not be empty")


def check_size(size_bytes: int, limits: ConstraintLimits, path: str) -> None:
    """Checks the size of a field's text. Raises AntiphonError, CONSTRAINT_TOO_COMPLEX."""
    if size_bytes > limits.max_size_bytes:
        raise _too_complex(path, f"{size_bytes} bytes", limits.max_size_bytes, "bytes")


def _too_complex(path: str, value: str, limit: int, unit: str) -> AntiphonError:
    return AntiphonError(
        ErrorReason.CONSTRAINT_TOO_COMPLEX,
        f"{path}: has {value}; the limit is {limit} {unit}",
        metadata={"field": path, f"limit_{unit}": str(limit)},
    )
