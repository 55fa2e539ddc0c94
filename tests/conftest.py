"""Options of the test run, how its processes start, and the event loops of its tests."""

import asyncio
import gc
import logging
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


asyncio.set_event_loop_policy(_LoopsThatEnd())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale",
        type=int,
        default=1,
        help="how many times as often tests with random lives repeat them; 20 makes a long run",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: Sequence[Any]) -> None:
    """Has the test processes forked: what they all import would cost each of them seconds."""
    launcher = zygote.launcher_command(modules=("support.worker_imports",))
    for spec in specs:
        spec.python = shlex.join([*launcher, "test_worker"])
    # The test processes start servers and engines by the same zygote.
    os.environ[zygote.NAME_VARIABLE] = launcher[-1]


def pytest_collection_finish() -> None:
    """Keeps what stays for the whole run, millions of objects, out of what each test looks at."""
    gc.collect()
    gc.freeze()
    # What pytest catches, it catches of each that stands alone by itself: torch's fifty would take
    # a millisecond a test.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> int:
    """How many times as often tests with random lives repeat them."""
    return int(request.config.getoption("--scale"))
