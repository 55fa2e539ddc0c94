"""Defaults of a session that do not hold for one of its turns."""

import difflib
from collections.abc import Iterator, Sequence

from antiphon.v1.types_pb2 import Constraint, GenerationConfig, ToolChoice
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from antiphon_engine.api.errors import FieldViolation, InvalidRequest

_WHOLE = (Constraint.DESCRIPTOR, ToolChoice.DESCRIPTOR, Duration.DESCRIPTOR)
"""Messages that are one value each: a turn replaces or lifts them whole."""


def check_cleared_defaults(mask: FieldMask, path: str) -> None:
    """Checks that a mask names fields of GenerationConfig. Raises InvalidRequest."""
    if not mask.paths:
        return
    known = list(_paths(GenerationConfig.DESCRIPTOR))
    if len(mask.paths) > len(known):
        description = f"must be at most {len(known)}, as many as there are; are {len(mask.paths)}"
        raise InvalidRequest(FieldViolation(f"{path}.paths", description))
    for index, named in enumerate(mask.paths):
        if named not in known:
            nearest = difflib.get_close_matches(named[:64], known, n=1, cutoff=0.0)
            raise InvalidRequest(
                FieldViolation(
                    f"{path}.paths[{index}]",
                    f"is {named[:64]!r}, which is no field of GenerationConfig that can be"
                    f" cleared; the nearest is {nearest[0]!r}",
                )
            )


def without_defaults(defaults: GenerationConfig, paths: Sequence[str]) -> GenerationConfig:
    """Returns a session's defaults but for those that a turn clears."""
    kept = GenerationConfig()
    kept.CopyFrom(defaults)
    for path in paths:
        *parents, name = path.split(".")
        message: Message | None = kept
        for parent in parents:
            message = getattr(message, parent) if message and message.HasField(parent) else None
        if message is not None:
            message.ClearField(name)
    return kept


def _paths(descriptor: Descriptor, prefix: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        yield prefix + field.name
        parts = field.message_type
        if parts is not None and not field.is_repeated and parts not in _WHOLE:
            yield from _paths(parts, f"{prefix}{field.name}.")
