import logging
from collections.abc import Iterator

import pytest

from support.log_records import log_records
from support.otlp_sink import OtlpSink


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A collector that takes all."""
    with OtlpSink().listening() as sink:
        yield sink


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What libraries log meanwhile."""
    with log_records() as kept:
        yield kept
