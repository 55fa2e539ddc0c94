"""Refuses fields that this server does not know: to leave them out would change the meaning."""

from collections.abc import Mapping

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from antiphon_server.validation_fields import Violations, join_path


def check_unknown_fields(message: Message, path: str) -> None:
    """Checks that a message and all messages in it have known fields only.

    Takes time in proportion to the number of messages inside.

    Raises:
        InvalidRequest: names the unknown fields by number, below `path`.
    """
    violations = Violations()
    _walk(message, path, violations)
    violations.raise_if_any()


def _walk(message: Message, path: str, violations: Violations) -> None:
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        number = unknown[index].field_number
        violations.add(join_path(path, str(number)), f"this server knows no field {number} here")
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        below = join_path(path, field.name)
        if not field.is_repeated:
            _walk(value, below, violations)
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                if isinstance(entry, Message):
                    _walk(entry, f"{below}[{key}]", violations)
        else:
            for index, entry in enumerate(value):
                _walk(entry, f"{below}[{index}]", violations)
