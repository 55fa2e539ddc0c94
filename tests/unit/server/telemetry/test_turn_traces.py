"""What a collector gets of turns: which spans, where they stand, what they say.

Spans go out as the server ends, so each test looks behind its server's block.
"""

import asyncio
import logging
from pathlib import Path

from antiphon.v1.session_pb2 import (
    AppendItems,
    AppendTurnRequest,
    CancelRequest,
    ConverseRequest,
    CreateSessionRequest,
    GetTurnRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import ToolChoice

from antiphon_engine.api.handle import EngineState
from support.calling_sessions import BERN, NOW, calling_bench
from support.fake_engine import FakeEngine
from support.otlp_sink import OtlpSink
from support.session_rows import user
from support.traces import (
    COMES_WITH,
    CONVERSE,
    CREATE_SESSION,
    PARENT,
    RUN_TURN,
    TRACE,
    check_whole,
    converse,
    is_inside,
    read_all,
    read_to,
    run_turn,
    submitted,
    traced_server,
    turn,
)


async def test_three_turns_of_a_stream_are_linked_one_to_the_other(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        await converse(server, turn("t1"), turn("t2"), turn("t3"), metadata=COMES_WITH)
        told = await server.sessions.GetTurn(GetTurnRequest(name="sessions/a/turns/t2"))

    (stream,) = sink.named(CONVERSE)
    chats = sink.below(stream)
    assert [span.name for span in chats] == ["chat tiny"] * 3
    assert (stream.trace_id, stream.parent_id) == (TRACE, PARENT)
    for chat in chats:
        check_whole(chat, sink)
        assert is_inside(chat, stream)
        assert chat.attributes["gen_ai.conversation.id"] == "a"
        writes = [span for span in sink.below(chat) if span.name == "store.write"]
        assert {span.attributes["antiphon.write"] for span in writes} == {"accept", "complete"}
    assert [span.links for span in chats] == [
        {},
        {"previous_turn": chats[0].span_id},
        {"previous_turn": chats[1].span_id},
    ]
    assert (told.trace_id, told.traceparent) == (TRACE, chats[1].traceparent)


async def test_a_turn_with_its_own_trace_points_to_its_stream(tmp_path: Path, sink: OtlpSink):
    own = "cd" * 16
    async with traced_server(tmp_path, sink) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        mine = turn("t2", traceparent=f"00-{own}-{'12' * 8}-01", tracestate="vendor=1")
        await converse(server, turn("t1"), mine, metadata=COMES_WITH)

    (stream,) = sink.named(CONVERSE)
    first, second = sink.named("chat tiny")
    assert (first.trace_id, first.parent_id) == (TRACE, stream.span_id)
    assert (second.trace_id, second.parent_id) == (own, "12" * 8)
    assert second.span.trace_state == "vendor=1"
    assert second.links == {"previous_turn": first.span_id, "stream": stream.span_id}


async def test_a_turn_whose_engine_died_tells_of_both_engines(tmp_path: Path, sink: OtlpSink):
    engine = FakeEngine()
    async with traced_server(tmp_path, sink, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        engine.hold()
        running = asyncio.ensure_future(run_turn(server, turn("t1", 8), metadata=COMES_WITH))
        await submitted(engine)
        engine.step(3)
        await asyncio.sleep(0.05)
        engine.set_state(EngineState.DOWN)
        await asyncio.sleep(0)
        engine.set_state(EngineState.READY)
        engine.release()
        await running

    (chat,) = sink.named("chat tiny")
    (decode,) = [span for span in sink.below(chat) if span.name == "decode"]
    assert chat.attributes["antiphon.outcome"] == "completed"
    assert decode.event_names == ["first_token", "engine_lost", "resumed"]
    assert chat.parent_id == sink.named(RUN_TURN)[0].span_id


async def test_a_turn_that_the_next_server_ends_says_so_and_keeps_its_links(
    tmp_path: Path, sink: OtlpSink
):
    engine = FakeEngine()
    async with traced_server(tmp_path, sink, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        await run_turn(server, turn("t1"), metadata=COMES_WITH)
        engine.hold()
        call = server.sessions.RunTurn(
            RunTurnRequest(session="sessions/a", turn=turn("t2")), metadata=COMES_WITH
        )
        await call.read()
    async with traced_server(tmp_path, sink) as server:
        await run_turn(server, turn("t2"))
        await run_turn(server, turn("t3"))

    first, second, third = sink.named("chat tiny")
    assert second.attributes["antiphon.recovered"] is True
    assert second.attributes["antiphon.epoch"] != first.attributes["antiphon.epoch"]
    assert second.event_names == ["recovered"]
    (decode,) = [span for span in sink.below(second) if span.name == "decode"]
    assert set(decode.event_names) == {"first_token", "recovered"}
    assert second.trace_id == TRACE
    assert second.links == {"previous_turn": first.span_id}
    assert third.links == {"previous_turn": second.span_id}
    assert "antiphon.recovered" not in third.attributes


async def test_a_cancelled_or_appended_turn_has_its_span(tmp_path: Path, sink: OtlpSink):
    async with traced_server(tmp_path, sink) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        await server.sessions.AppendTurn(
            AppendTurnRequest(
                session="sessions/a", append=AppendItems(turn_id="t1", items=[user("context")])
            )
        )
        await run_turn(server, turn("t2"))

    (appended,) = sink.named("append")
    (chat,) = sink.named("chat tiny")
    assert appended.attributes["gen_ai.conversation.id"] == "a"
    assert "gen_ai.operation.name" not in appended.attributes
    assert {span.name for span in sink.below(appended)} == {"store.write"}
    assert chat.links == {"previous_turn": appended.span_id}


async def test_an_interrupted_turn_says_so_and_is_followed(tmp_path: Path, sink: OtlpSink):
    engine = FakeEngine()
    async with traced_server(tmp_path, sink, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        engine.hold()
        first = server.sessions.RunTurn(RunTurnRequest(session="sessions/a", turn=turn("t1", 200)))
        await submitted(engine)
        engine.step(3)
        # A turn that is interrupted before anything of it was delivered has failed.
        events = aiter(first)
        while (await anext(events)).WhichOneof("event") != "delta":
            pass
        second = turn("t2", if_busy=StartTurn.IF_BUSY_INTERRUPT)
        following = asyncio.ensure_future(run_turn(server, second))
        engine.release()
        await asyncio.gather(read_all(first), following)

    stopped, after = sink.named("chat tiny")
    names = [name for span in (stopped, *sink.below(stopped)) for name in span.event_names]
    assert names.count("interrupted") == 1
    assert stopped.attributes["gen_ai.response.finish_reasons"] == ["cancelled"]
    assert after.links == {"previous_turn": stopped.span_id}


async def test_what_the_front_end_does_for_calls_and_constraints_has_spans(
    tmp_path: Path, sink: OtlpSink
):
    settings = [f"telemetry.otlp_endpoint={sink.endpoint}"]
    async with calling_bench(tmp_path, settings=settings) as bench:
        bench.says(f"{BERN}\n{NOW}")
        asked = bench.start()
        asked.turn.config.tool_choice.mode = ToolChoice.MODE_REQUIRED
        await read_all(bench.server.sessions.RunTurn(asked))

    (chat,) = sink.named(f"chat {bench.server.model.name.removeprefix('models/')}")
    below = sink.below(chat)
    parsed = [span for span in below if span.name == "tool.parse"]
    checked = [span for span in below if span.name == "constraint.check"]
    assert [span.attributes["antiphon.tool"] for span in parsed] == ["weather", "clock_now"]
    assert checked[0].attributes["antiphon.checked"] == "constraint"
    assert [span.attributes["antiphon.checked"] for span in checked].count("constraint") == 1
    assert {span.attributes["antiphon.checked"] for span in checked} == {"constraint", "output"}
    accepted = min(span.span.start_time_unix_nano for span in below if span.name == "store.write")
    assert checked[0].span.end_time_unix_nano <= accepted, "a turn is received before its check"
    assert chat.attributes["antiphon.tool_calls"] == 2
    assert all(is_inside(span, chat) for span in (*parsed, *checked))


async def test_turns_of_a_stream_that_end_in_every_way_stay_in_its_trace(
    tmp_path: Path, sink: OtlpSink, records: list[logging.LogRecord]
):
    """Case G7-O1, with the tests of requests beside it."""
    engine = FakeEngine()
    async with traced_server(tmp_path, sink, engine=engine) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        call = server.sessions.Converse(metadata=COMES_WITH)
        await call.write(ConverseRequest(open=OpenSession(name="sessions/a")))
        await call.write(ConverseRequest(generate=turn("whole")))
        await read_to(call, "completed")
        late = turn("late", 200)
        late.timeout.FromMilliseconds(1)
        await call.write(ConverseRequest(generate=late))
        await read_to(call, "failed")
        engine.hold()
        await call.write(ConverseRequest(generate=turn("stopped", 200)))
        await read_to(call, "accepted")
        await submitted(engine)
        engine.step()
        await call.write(ConverseRequest(cancel=CancelRequest(turn_id="stopped")))
        engine.release()
        await read_to(call, "completed", "failed")
        call.cancel()
        await server.server.supervision.wait_idle(30)

    (stream,) = sink.named(CONVERSE)
    chats = sink.below(stream)
    assert (stream.trace_id, stream.parent_id) == (TRACE, PARENT)
    assert stream.attributes["rpc.response.status_code"] == "CANCELLED"
    assert [span.attributes["antiphon.outcome"] for span in chats] == [
        "completed",
        "failed",
        "cancelled",
    ]
    assert chats[1].attributes["error.type"] == "TIMEOUT"
    turns = {span.trace_id for span in sink.spans if span.name != CREATE_SESSION}
    assert turns == {TRACE}
    said = " ".join(record.getMessage() for record in records)
    assert "ifferent Context" not in said
    assert "ailed to detach" not in said
