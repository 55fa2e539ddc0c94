from collections.abc import Iterator

import pytest

from support.otlp_sink import OtlpSink


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A collector that takes all."""
    with OtlpSink().listening() as sink:
        yield sink
