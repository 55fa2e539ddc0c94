"""Many requests over one stream."""

from dataclasses import replace

import grpc
from antiphon.v1.types_pb2 import (
    FinishReason,
    GoAway,
    OutputOptions,
)
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.offload import Offload
from support.fake_engine import FakeEngine
from support.inference_server import inference_server
from support.multiplexing import Multiplexer, MultiplexSetup, endless, say, stream_text, until
from support.served_models import LIMITS, TextSide, served_model


async def test_each_request_is_answered_as_if_it_were_streamed_alone(
    multiplex: MultiplexSetup,
) -> None:
    requests = {tag: say(f"prompt {tag}", seed=tag) for tag in range(12)}
    requests[3].num_outputs = 2
    requests[4].config.output.CopyFrom(OutputOptions(token_ids=True, prompt_token_ids=True))
    caller = multiplex.open()

    for tag, request in requests.items():
        await caller.start(tag, request)
    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    for tag, request in requests.items():
        told = caller.told[tag]
        alone = [r async for r in multiplex.server.stub.StreamGenerate(request)]
        assert told.num_ends == 1
        assert told.kinds[0] == "started"
        assert told.kinds[-1] == "completed"
        assert told.events[0].started.seed == tag
        for index in range(request.num_outputs or 1):
            assert "".join(
                e.delta.text for e in told.events if e.delta.output_index == index
            ) == "".join(e.delta.text for e in alone if e.delta.output_index == index)
        ids = [i for e in told.events for i in e.delta.token_ids]
        assert ids == [i for e in alone for i in e.delta.token_ids]
        assert told.kinds.count("prompt_part") == (tag == 4)
        assert told.events[-1].completed.usage.output_tokens == 20 * (request.num_outputs or 1)


async def test_requests_that_run_together_share_frames(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(max_running=200)
    model = served_model(text, engine)
    async with inference_server(model, offload) as server:
        caller = Multiplexer(server.stub)
        caller.read_on()
        engine.hold()
        for tag in range(60):
            await caller.start(tag, say(seed=tag, num_tokens=5))
        await until(lambda: engine.num_waiting == 60)
        for _ in range(5):
            engine.step()
            num_events = caller.num_events
            await caller.until(lambda seen, before=num_events: seen.num_events > before)
        status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert all(caller.told[tag].kinds[-1] == "completed" for tag in range(60))
    assert caller.num_frames <= 6


async def test_two_hundred_requests_at_once_are_each_as_if_alone(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine(max_running=200)
    model = served_model(text, engine, limits=replace(LIMITS, max_queued_requests=200))
    async with inference_server(model, offload) as server:
        caller = Multiplexer(server.stub)
        caller.read_on()
        requests = {tag: say(seed=tag, num_tokens=1 + tag % 30) for tag in range(200)}
        for tag, request in requests.items():
            await caller.start(tag, request)
        status = await caller.finish()
        alone = {
            tag: await stream_text(server, say(seed=tag, num_tokens=1 + tag % 30))
            for tag in range(0, 200, 13)
        }

    assert status is grpc.StatusCode.OK
    assert all(caller.told[tag].kinds[-1] == "completed" for tag in range(200))
    assert {tag: caller.told[tag].text for tag in alone} == alone
    assert caller.num_frames < caller.num_events


async def test_stream_without_instructions_ends_well(multiplex: MultiplexSetup) -> None:
    caller = multiplex.open()

    assert await caller.finish() is grpc.StatusCode.OK
    assert caller.num_frames == 0


async def test_cancelled_request_finishes_as_cancelled_and_the_others_go_on(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    caller.read_on()
    multiplex.engine.hold()
    await caller.start(1, endless())
    await caller.start(2, say())
    await until(lambda: multiplex.engine.num_waiting == 2)
    multiplex.engine.step(3)
    await caller.until(lambda seen: "delta" in seen.told[1].kinds)

    await caller.cancel(1)
    await caller.cancel(77)
    await caller.until_ended(1)
    multiplex.engine.release()
    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert caller.told[1].finish_reasons() == [FinishReason.FINISH_REASON_CANCELLED]
    assert caller.told[1].kinds[-1] == "completed"
    assert caller.told[2].text == await stream_text(multiplex.server, say())
    assert 77 not in caller.told


async def test_request_cancelled_before_it_runs_finishes_as_cancelled(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    caller.read_on()
    multiplex.engine.hold()
    for tag in range(6):
        request = endless()
        request.num_outputs = 2
        await caller.start(tag, request)
    await until(lambda: multiplex.engine.num_waiting == 4)

    await caller.cancel(5)
    await caller.until_ended(5)
    for tag in range(5):
        await caller.cancel(tag)

    assert await caller.finish() is grpc.StatusCode.OK
    cancelled = FinishReason.FINISH_REASON_CANCELLED
    assert all(caller.told[tag].finish_reasons() == [cancelled] * 2 for tag in range(6))
    assert all(caller.told[tag].num_ends == 1 for tag in range(6))
    assert len(multiplex.engine.requests) <= 5


async def test_tag_of_a_running_request_ends_the_stream_and_frees_all(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    await caller.start(1, endless())
    await caller.start(2, endless())
    await caller.start(1, say())

    status = await caller.end()

    assert status is grpc.StatusCode.INVALID_ARGUMENT
    await multiplex.until_idle()
    assert all(request.closed for request in multiplex.engine.requests)


async def test_tag_is_free_again_once_its_request_has_ended(multiplex: MultiplexSetup) -> None:
    caller = multiplex.open()
    caller.read_on()
    await caller.start(1, say(seed=1))
    await caller.until_ended(1)

    await caller.start(1, say(seed=2))
    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert caller.told[1].num_ends == 2
    texts = [await stream_text(multiplex.server, say(seed=seed)) for seed in (1, 2)]
    assert caller.told[1].text == "".join(texts)


async def test_gone_caller_frees_all_its_requests(multiplex: MultiplexSetup) -> None:
    caller = multiplex.open()
    caller.read_on()
    for tag in range(7):
        await caller.start(tag, endless())
    await caller.until(lambda seen: len(seen.told) > 0)

    caller.call.cancel()

    await multiplex.until_idle()


async def test_more_requests_than_may_run_wait_their_turn_and_all_are_answered(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    caller.read_on()
    most = 0
    for tag in range(150):
        await caller.start(tag, say(seed=tag, num_tokens=3))
        most = max(most, multiplex.engine.num_running + multiplex.engine.num_waiting)

    assert await caller.finish() is grpc.StatusCode.OK
    assert all(caller.told[tag].num_ends == 1 for tag in range(150))
    assert all(caller.told[tag].kinds[-1] == "completed" for tag in range(150))
    assert most <= 4


async def test_engine_failure_fails_each_request_and_not_the_stream(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    caller.read_on()
    multiplex.engine.hold()
    for tag in range(3):
        await caller.start(tag, endless())
    await until(lambda: multiplex.engine.num_waiting == 3)

    multiplex.engine.fail_all(AntiphonError(ErrorReason.ENGINE_DOWN, "it died", retry_delay_s=1.0))
    await caller.until_ended(0, 1, 2)
    multiplex.engine.release()
    await caller.start(3, say())

    assert await caller.finish() is grpc.StatusCode.OK
    assert all(caller.told[tag].reasons == ["ENGINE_DOWN"] for tag in range(3))
    assert caller.told[0].failures[0].retry_delay.seconds == 1
    assert caller.told[3].text == await stream_text(multiplex.server, say())


async def test_stream_that_is_sent_away_finishes_what_runs_and_takes_nothing_new(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    caller.read_on()
    multiplex.engine.hold()
    await caller.start(1, say())
    await until(lambda: multiplex.engine.num_waiting == 1)

    end = AntiphonError(ErrorReason.DRAINING, "over", retry_delay_s=1.0)
    go_away = GoAway(reason=GoAway.REASON_DRAINING, time_left=Duration(seconds=9))
    multiplex.server.long_calls.send_away(go_away, end)
    await caller.until(lambda seen: bool(seen.go_aways))
    await caller.start(2, say())
    await caller.until_ended(2)
    multiplex.engine.release()
    status = await caller.end()

    assert status is grpc.StatusCode.UNAVAILABLE
    assert caller.go_aways == [go_away]
    assert caller.told[2].reasons == ["DRAINING"]
    assert caller.told[1].text == await stream_text(multiplex.server, say())
    assert caller.told[1].kinds[-1] == "completed"


async def test_stream_that_is_cut_off_fails_what_runs_under_its_tags(
    multiplex: MultiplexSetup,
) -> None:
    caller = multiplex.open()
    caller.read_on()
    multiplex.engine.hold()
    for tag in range(6):
        await caller.start(tag, endless())
    await until(lambda: multiplex.engine.num_waiting == 4)

    multiplex.server.long_calls.cut_off(AntiphonError(ErrorReason.DRAINING, "over"))
    status = await caller.end()

    assert status is grpc.StatusCode.UNAVAILABLE
    assert all(caller.told[tag].reasons == ["DRAINING"] for tag in range(6))
