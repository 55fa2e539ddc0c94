"""Page tokens: opaque to callers, and good only for the list that they came from."""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence

from antiphon_engine.api.errors import FieldViolation, InvalidRequest

_DIGEST_BYTES = 12
_MAX_NUMBER = (1 << 63) - 1
MAX_PAGE_SIZE = 1000
DEFAULT_PAGE_SIZE = 50


def page_limit(page_size: int) -> int:
    """Returns how many a page may hold. Raises InvalidRequest."""
    if page_size > MAX_PAGE_SIZE:
        raise InvalidRequest(
            FieldViolation("page_size", f"must be at most {MAX_PAGE_SIZE}; is {page_size}")
        )
    return page_size or DEFAULT_PAGE_SIZE


def write_page_token(position: Sequence[int | str], *, listed: Sequence[str]) -> str:
    """Returns a token for what follows `position` in a list.

    Args:
        position: Where the page ended.
        listed: What tells the list from others: its kind, owner and filters.
    """
    text = json.dumps(position).encode()
    return base64.urlsafe_b64encode(_digest(text, listed) + text).decode()


def read_page_token(
    token: str, *, listed: Sequence[str], kinds: Sequence[type[int | str]]
) -> list[int | str] | None:
    """Returns the position in a token; None for the first page.

    Args:
        token: The caller's.
        listed: What tells the list from others.
        kinds: Of what a position consists: anybody can make a token up that looks right.

    Raises:
        InvalidRequest: the token is not one of this list.
    """
    if not token:
        return None
    try:
        data = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    digest, text = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    position = _read_position(text, kinds) if digest == _digest(text, listed) else None
    if position is None:
        raise InvalidRequest(
            FieldViolation("page_token", "must be next_page_token of the same list's page before")
        )
    return position


def _read_position(text: bytes, kinds: Sequence[type[int | str]]) -> list[int | str] | None:
    """Returns what a token tells; None: no server wrote that."""
    try:
        read: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, list) or [type(each) for each in read] != list(kinds):
        return None
    return read if all(_is_possible(each) for each in read) else None


def _is_possible(value: int | str) -> bool:
    """Whether the store can look for it."""
    return value.isascii() if isinstance(value, str) else 0 <= value <= _MAX_NUMBER


def _digest(text: bytes, listed: Sequence[str]) -> bytes:
    whole = json.dumps(listed).encode() + b"\0" + text
    return hashlib.sha256(whole).digest()[:_DIGEST_BYTES]
