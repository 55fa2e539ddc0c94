"""All fields that requests have: walked over by their descriptors, and set one at a time."""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_WHOLE: Final = {Duration.DESCRIPTOR, Timestamp.DESCRIPTOR, FieldMask.DESCRIPTOR}

_SCALARS: Final[Mapping[int, object]] = {
    FieldDescriptor.CPPTYPE_STRING: "x",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_UINT32: 3,
    FieldDescriptor.CPPTYPE_UINT64: 3,
    FieldDescriptor.CPPTYPE_ENUM: 2,
}


def leaves(descriptor: Descriptor, path: str = "") -> Iterator[str]:
    """Yields the paths of all fields in which a message says something by itself."""
    for field in descriptor.fields:
        below = f"{path}.{field.name}" if path else field.name
        inner = field.message_type
        if inner is None or inner in _WHOLE or inner.GetOptions().map_entry or not inner.fields:
            yield below
        else:
            yield from leaves(inner, below)


def parents_there(message: Message, path: str) -> int:
    """How many of the messages that a field stands in are there, from the outermost."""
    num_there = 0
    for name in path.split(".")[:-1]:
        value = getattr(message, name)
        repeated = message.DESCRIPTOR.fields_by_name[name].is_repeated
        if not (value if repeated else message.HasField(name)):
            break
        message = value[0] if repeated else value
        num_there += 1
    return num_there


def without(message: Message, names: Container[str]) -> Message:
    """Returns a copy that lacks all fields of these names, at any depth."""
    kept = type(message)()
    kept.CopyFrom(message)
    _clear(kept, names)
    return kept


def set_field(message: Message, path: str, values: Mapping[str, object]) -> None:
    """Sets a field, and makes the messages that it stands in.

    Args:
        message: The request.
        path: The field.
        values: By pattern of the whole path, those that are not to be the usual ones of their type.
    """
    *parents, last = path.split(".")
    for name in parents:
        value = getattr(message, name)
        if message.DESCRIPTOR.fields_by_name[name].is_repeated:
            message = value[0] if value else value.add()
        else:
            value.SetInParent()
            message = value
    field = message.DESCRIPTOR.fields_by_name[last]
    chosen = next((v for pattern, v in values.items() if re.search(pattern, path)), None)
    if chosen is None and field.message_type is None:
        chosen = _SCALARS[field.cpp_type]
        chosen = [chosen] if field.is_repeated else chosen
    if field.message_type is None and not field.is_repeated:
        setattr(message, last, chosen)
        return
    message.ClearField(last)
    if field.message_type is not None and not field.is_repeated:
        getattr(message, last).SetInParent()
        if chosen is not None:
            getattr(message, last).CopyFrom(chosen)
    elif isinstance(chosen, Mapping):
        getattr(message, last).update(chosen)
    else:
        getattr(message, last).extend(chosen)


def _clear(message: Message, names: Container[str]) -> None:
    for field, value in message.ListFields():
        if field.name in names:
            message.ClearField(field.name)
        elif field.message_type and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                _clear(inner, names)
