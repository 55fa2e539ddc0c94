"""Messages drawn at random: by their descriptors, from valid ones, and as bytes that are none."""

import random
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_MAX_DEPTH: Final = 6
_TEXTS: Final = (
    *("", "x", "hi there", "sessions/fuzz", "sessions/fuzz/turns/t1", "sessions/none", "fuzz"),
    *("models/tiny", "models/none", "t1", "a" * 64, "b" * 65, "0" * 300, "\x00", "é漢\U0001f642"),
    *("<|im_start|>", "start", "e", "{", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"),
    "123e4567-e89b-12d3-a456-426614174000",
)
_INTEGERS: Final = (0, 1, 2, 3, 7, 20, 255, 1000, 2**31 - 1)
_FLOATS: Final = (0.0, 0.5, 1.0, -1.0, 2.0, 1e30, float("inf"), float("nan"))


def draw_message(descriptor: Descriptor, source: random.Random, depth: int = 0) -> Message:
    """Returns a message of a type with some of its fields set to something."""
    message: Message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if source.random() < (0.6 if depth == 0 else 0.35):
            change_field(message, field, source, depth)
    return message


def change_one(message: Message, source: random.Random) -> None:
    """Changes a field of a message, or of one inside it."""
    inner = [
        value
        for field, value in message.ListFields()
        if field.message_type is not None and not field.is_repeated
    ]
    if inner and source.random() < 0.7:
        change_one(source.choice(inner), source)
    elif message.DESCRIPTOR.fields:
        change_field(message, source.choice(message.DESCRIPTOR.fields), source, 1)


def change_field(
    message: Message, field: FieldDescriptor, source: random.Random, depth: int
) -> None:
    """Sets a field to something, however little sense that makes."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = (_draw_scalar(kind.fields_by_name[name], source) for name in ("key", "value"))
        if value is not None and key is not None:
            getattr(message, field.name)[key] = value
    elif field.is_repeated:
        for _ in range(source.choice((1, 1, 2, 5))):
            if kind is None:
                getattr(message, field.name).append(_draw_scalar(field, source))
            elif depth < _MAX_DEPTH:
                getattr(message, field.name).append(draw_message(kind, source, depth + 1))
    elif kind is None:
        setattr(message, field.name, _draw_scalar(field, source))
    elif depth < _MAX_DEPTH:
        getattr(message, field.name).CopyFrom(draw_message(kind, source, depth + 1))


def garble(data: bytes, source: random.Random) -> bytes:
    """Returns bytes that were a message before something befell them."""
    way = source.randrange(5)
    if way == 0:
        return source.randbytes(source.choice((1, 2, 8, 100, 4000)))
    if way == 1:
        return data[: source.randrange(len(data) + 1)]
    if way == 2:
        # A field that nobody knows, of a type that is read.
        return data + bytes([0xF8, 0x3E, source.randrange(128)])
    if way == 3:
        return data + data
    changed = bytearray(data or b"\x08")
    for _ in range(source.choice((1, 1, 3))):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)


def _draw_scalar(field: FieldDescriptor, source: random.Random) -> object:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = source.choice(_TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return source.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return source.choice(_FLOATS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return source.choice([*field.enum_type.values_by_number, 99])
    if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64):
        return source.choice([*_INTEGERS, -1])
    return source.choice(_INTEGERS) if kind != FieldDescriptor.CPPTYPE_MESSAGE else None
