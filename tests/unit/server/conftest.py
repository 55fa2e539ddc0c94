import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Puts the process's logging back behind a test that configures it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
