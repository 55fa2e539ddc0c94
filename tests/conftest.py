"""Options of the test run, how its processes start, and the event loops of its tests."""

import asyncio
import gc
import os
import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon_client.event_loop import deaf_once_closed
from support import zygote


class _LoopsThatEnd(asyncio.DefaultEventLoopPolicy):
    """Every test has its loop; what gRPC still has to tell one that ended must not trouble others.

    As the policy, so that loops of `asyncio.run` in tests are such ones too.
    """

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return deaf_once_closed(super().new_event_loop())


def pytest_configure() -> None:
    asyncio.set_event_loop_policy(_LoopsThatEnd())


def pytest_unconfigure() -> None:
    """Leaves the policy to tests: the zygote collects them, and forks servers as well."""
    asyncio.set_event_loop_policy(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale",
        type=int,
        default=1,
        help="how many times as often tests with random lives repeat them; 20 makes a long run",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Has the test processes forked: what they all import would cost each of them seconds.

    The tests themselves are of that: the process that forks has imported them by pytest.
    """
    launcher = zygote.launcher_command(modules=("support.worker_imports",), tests=config.args)
    for spec in specs:
        spec.python = shlex.join([*launcher, "test_worker"])
    # The test processes start servers and engines by the same zygote.
    os.environ[zygote.NAME_VARIABLE] = launcher[-1]


def pytest_collection_finish() -> None:
    """Keeps what stays for the whole run, millions of objects, out of every search for cycles."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> int:
    """How many times as often tests with random lives repeat them."""
    return int(request.config.getoption("--scale"))
