"""The bound on a single answer."""

from typing import Final

from google.protobuf.message import Message

from antiphon_engine.api.errors import AntiphonError, ErrorReason

MAX_ANSWER_BYTES: Final = 3 << 20
"""Clients take messages of 4 MiB by default; what is larger goes in pieces or not at all."""


def check_answer_size(answer: Message, *, hint: str) -> None:
    """Refuses to send an answer that clients would not take.

    Args:
        answer: What is to be sent.
        hint: What the caller can do instead.

    Raises:
        AntiphonError: RESPONSE_TOO_LARGE.
    """
    size_bytes = answer.ByteSize()
    if size_bytes > MAX_ANSWER_BYTES:
        raise AntiphonError(
            ErrorReason.RESPONSE_TOO_LARGE,
            f"the answer has {size_bytes} bytes; a message has at most {MAX_ANSWER_BYTES}; {hint}",
            metadata={"size_bytes": str(size_bytes), "limit_bytes": str(MAX_ANSWER_BYTES)},
        )
