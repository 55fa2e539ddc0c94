"""Options of the test run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale",
        type=int,
        default=1,
        help="how many times as often tests with random lives repeat them; 20 makes a long run",
    )


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> int:
    """How many times as often tests with random lives repeat them."""
    return int(request.config.getoption("--scale"))
