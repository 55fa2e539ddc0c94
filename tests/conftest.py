"""Options of the test run, and the event loops of its tests."""

import asyncio

import pytest

from antiphon_client.event_loop import deaf_once_closed


class _LoopsThatEnd(asyncio.DefaultEventLoopPolicy):
    """Every test has its loop; what gRPC still has to tell one that ended must not trouble others.

    As the policy, so that loops of `asyncio.run` in tests are such ones too.
    """

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return deaf_once_closed(super().new_event_loop())


asyncio.set_event_loop_policy(_LoopsThatEnd())


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
