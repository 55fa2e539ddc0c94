"""Refuses fields that this server does not know: to leave them out would change the meaning."""

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.validation_fields import Violations, join_path

MAX_INNER_MESSAGES: Final = 65_536
"""Inside of one request: far more than fit any context, and each costs time where nobody waits."""


def check_unknown_fields(message: Message, path: str) -> None:
    """Checks that a message and all messages in it have known fields only, and are not too many.

    Takes time in proportion to the number of messages inside.

    Raises:
        InvalidRequest: names the unknown fields by number, below `path`, or the field with too
            many messages.
    """
    walk = _Walk()
    walk.visit(message, path)
    walk.violations.raise_if_any()


class _Walk:
    """Looks into a message and all messages in it."""

    def __init__(self) -> None:
        self.violations = Violations()
        self._num_left = MAX_INNER_MESSAGES

    def visit(self, message: Message, path: str) -> None:
        unknown = UnknownFieldSet(message)
        for index in range(len(unknown)):
            number = unknown[index].field_number
            self.violations.add(
                join_path(path, str(number)), f"this server knows no field {number} here"
            )
        for field, value in message.ListFields():
            if not _holds_messages(field):
                continue
            below = join_path(path, field.name)
            self._count(1 if not field.is_repeated else len(value), below)
            if not field.is_repeated:
                self.visit(value, below)
            elif isinstance(value, Mapping):
                for key, entry in value.items():
                    self.visit(entry, f"{below}[{key}]")
            else:
                for index, entry in enumerate(value):
                    self.visit(entry, f"{below}[{index}]")

    def _count(self, num_messages: int, path: str) -> None:
        self._num_left -= num_messages
        if self._num_left < 0:
            raise InvalidRequest(
                FieldViolation(
                    path, f"a request may have {MAX_INNER_MESSAGES} messages inside at most"
                )
            )


def _holds_messages(field: FieldDescriptor) -> bool:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        kind = kind.fields_by_name["value"].message_type
    return kind is not None
