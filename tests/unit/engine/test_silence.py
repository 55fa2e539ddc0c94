"""How long an engine has been silent, beside a connection on which nothing comes."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest

from antiphon_engine.api.connection import Connection
from antiphon_engine.api.frames import FrameReader
from antiphon_engine.api.messages import ToFrontEnd
from antiphon_engine.api.silence import Silence, cpu_clock_of

TICK_S = 0.02
NUM_TICKS = 5


@pytest.fixture
async def connection() -> AsyncIterator[Connection[ToFrontEnd]]:
    ours, theirs = socket.socketpair()
    reader = FrameReader[ToFrontEnd](msgspec.msgpack.Decoder(ToFrontEnd))
    connection = await Connection.open(ours, reader, lambda message: None)
    yield connection
    connection.close()
    theirs.close()


async def silent_for(connection: Connection[ToFrontEnd], *, worked_s: float) -> float:
    """Returns what is measured where the engine works so long in each tick."""
    seconds = iter(tick * worked_s for tick in range(NUM_TICKS + 1))
    silence = Silence(connection, tick_s=TICK_S, engine_cpu_s=lambda: next(seconds))
    for _ in range(NUM_TICKS):
        await silence.tick()
    return silence.length_s


@pytest.mark.parametrize("worked_s", [0.0, 0.01 * TICK_S])
async def test_an_engine_that_hangs_is_silent_all_the_time(
    connection: Connection[ToFrontEnd], worked_s: float
) -> None:
    silent_s = await silent_for(connection, worked_s=worked_s)

    assert silent_s == pytest.approx(NUM_TICKS * TICK_S, rel=0.1)


@pytest.mark.parametrize("worked_s", [TICK_S, 3 * TICK_S])
async def test_an_engine_that_runs_on_without_end_is_silent_all_the_time(
    connection: Connection[ToFrontEnd], worked_s: float
) -> None:
    silent_s = await silent_for(connection, worked_s=worked_s)

    assert silent_s == pytest.approx(NUM_TICKS * TICK_S, rel=0.1)


async def test_time_in_which_an_engine_at_work_waits_for_a_processor_does_not_count(
    connection: Connection[ToFrontEnd],
) -> None:
    silent_s = await silent_for(connection, worked_s=TICK_S / 10)

    assert silent_s == pytest.approx(NUM_TICKS * TICK_S / 10)


def test_a_clock_tells_a_process_s_processor_time_and_nothing_of_one_that_is_gone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)

    assert 0 < cpu_clock_of(os.getpid())() <= sum(os.times()[:2]) + 1
    assert cpu_clock_of(gone.pid)() == 0
