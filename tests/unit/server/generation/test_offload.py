"""CPU work off the event loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.offload import Offload


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_work_runs_on_another_thread_and_its_result_comes_back(offload: Offload) -> None:
    def work(a: int, *, b: int) -> tuple[int, int]:
        return a + b, threading.get_ident()

    total, thread = await offload.run(work, 2, b=3)

    assert total == 5
    assert thread != threading.get_ident()
    assert offload.num_pending == 0


async def test_what_the_work_raises_is_raised(offload: Offload) -> None:
    with pytest.raises(ZeroDivisionError):
        await offload.run(divmod, 1, 0)

    assert offload.num_pending == 0


async def test_more_than_may_wait_is_refused(gate: threading.Event) -> None:
    pool = Offload(num_threads=1, max_pending=2)
    calls = [asyncio.ensure_future(pool.run(gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(AntiphonError) as caught:
        await pool.run(gate.wait)
    gate.set()
    await asyncio.gather(*calls)

    assert caught.value.reason is ErrorReason.OVERLOADED
    assert caught.value.retry_delay_s
    assert pool.has_room
    assert await pool.run(int, "5") == 5
    pool.close()


async def test_cancelled_call_counts_until_its_work_has_ended(gate: threading.Event) -> None:
    pool = Offload(num_threads=1, max_pending=1)
    call = asyncio.ensure_future(pool.run(gate.wait))
    await asyncio.sleep(0)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert pool.num_pending == 1
    gate.set()
    async with asyncio.timeout(60):
        while pool.num_pending:  # noqa: ASYNC110 - the count is all there is to watch
            await asyncio.sleep(0.001)
    pool.close()
