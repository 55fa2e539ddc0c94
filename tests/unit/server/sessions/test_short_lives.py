"""Sessions that live for moments don't heap up, however many there are."""

import asyncio

from antiphon.v1.session_pb2 import CreateSessionRequest, Session
from google.protobuf.duration_pb2 import Duration

from antiphon_server.sessions.sweeper import BATCH
from support.session_bench import KEY, SessionBench, eventually


async def test_one_look_takes_all_that_have_expired_but_those_with_work(bench: SessionBench):
    short = Session(idle_ttl=Duration(seconds=1))
    await bench.create(idle_ttl=Duration(seconds=1))
    for number in range(2 * BATCH + 10):
        await bench.registry.create(
            "", CreateSessionRequest(session_id=f"s{number}", session=short)
        )
    bench.engine.hold()
    turn = asyncio.create_task(bench.run("hi", "t1"))
    await eventually(lambda: bool(bench.engine.requests))
    bench.clock.pass_s(2)

    await bench.registry._sweeper.sweep()

    assert bench.registry.num_sessions == await bench.store.count_sessions() == 1
    assert (await bench.store.read_session(KEY)) is not None
    bench.engine.release()
    await turn
