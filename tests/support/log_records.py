"""Keeps what libraries log while a test runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def log_records() -> Iterator[list[logging.LogRecord]]:
    """Yields the records that reach the root logger until the block ends, as they come."""
    keeper, root = _Keeper(), logging.getLogger()
    root.addHandler(keeper)
    try:
        yield keeper.records
    finally:
        root.removeHandler(keeper)
