"""Generations that share one call, against a script and against the real front end."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import msgspec
import pytest
from antiphon.v1 import inference_pb2, inference_pb2_grpc, types_pb2

from antiphon_client import (
    Cancelled,
    Client,
    InvalidArgument,
    ServerError,
    SyncClient,
    Unavailable,
    generate_request,
    multiplex,
    raw_tokens,
)
from support.fake_engine import FACTS, FakeEngine
from support.scripted_services import serving
from support.server import running_server

Event = inference_pb2.StreamGenerateResponse
Frame = inference_pb2.MultiplexGenerateResponse


def tagged(tag, text=None):
    """Returns an event with a piece of text, or the end."""
    content = types_pb2.OUTPUT_CHANNEL_CONTENT
    event = (
        Event(completed=inference_pb2.GenerationCompleted())
        if text is None
        else Event(delta=types_pb2.Delta(channel=content, text=text))
    )
    return inference_pb2.TaggedEvent(tag=tag, generation=event)


class Sharing(inference_pb2_grpc.InferenceServiceServicer):
    """Answers each request by what a test wrote."""

    def __init__(self, react):
        self.react = react
        self.frames = []

    async def MultiplexGenerate(self, request_iterator, context):
        async for frame in request_iterator:
            self.frames.append(frame)
            async for response in self.react(frame, context):
                yield response


@asynccontextmanager
async def sharing(servicer):
    serves = serving(inference=servicer)
    async with serves as target, Client(target) as client, client.shared_call() as shared:
        yield shared


def at_most(num_tokens):
    return types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(seed=3),
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
    )


async def test_frames_with_news_of_many_are_told_apart():
    async def both_at_the_second(frame, context):
        if frame.tag == 2:
            yield Frame(events=[tagged(1, "A1"), tagged(2, "B1"), tagged(1, "A2")])
            yield Frame(events=[tagged(2), tagged(1), tagged(9, "of nobody")])

    servicer = Sharing(both_at_the_second)
    async with sharing(servicer) as shared:
        request = generate_request("x")
        first = await shared.generate(request, cache_scope="ada", timeout_s=3)
        second = await shared.generate(request)
        texts = ["".join([piece async for piece in each.text()]) for each in (second, first)]

    assert texts == ["B1", "A1A2"]
    assert servicer.frames[0].cache_scope == "ada"
    assert servicer.frames[0].timeout.seconds == 3
    assert servicer.frames[0].generate == request


async def test_one_fails_and_the_others_go_on():
    async def fail_first(frame, context):
        if frame.tag == 1:
            failure = types_pb2.Failure(code=3, reason="INVALID_FIELD", message="no")
            yield Frame(events=[inference_pb2.TaggedEvent(tag=1, failed=failure)])
        else:
            yield Frame(events=[tagged(2, "fine"), tagged(2)])

    async with sharing(Sharing(fail_first)) as shared:
        bad = await shared.generate(generate_request("x"))
        good = await shared.generate(generate_request("x"))
        with pytest.raises(InvalidArgument, match="no"):
            await anext(bad)
        assert [piece async for piece in good.text()] == ["fine"]


async def test_a_broken_call_fails_all_that_ran_and_those_started_later():
    async def break_off(frame, context):
        yield Frame(events=[tagged(1, "begin")])
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async with sharing(Sharing(break_off)) as shared:
        stream = await shared.generate(generate_request("x"))
        with pytest.raises(Unavailable, match="gone"):
            [piece async for piece in stream.text()]
        with pytest.raises(ServerError):
            await shared.generate(generate_request("x"))


async def test_a_coming_end_is_noticed():
    async def leave(frame, context):
        go_away = types_pb2.GoAway(reason=types_pb2.GoAway.REASON_DRAINING)
        yield Frame(events=[tagged(1)], go_away=go_away)

    async with sharing(Sharing(leave)) as shared:
        stream = await shared.generate(generate_request("x"))
        assert [piece async for piece in stream.text()] == []
        assert shared.go_away.reason == types_pb2.GoAway.REASON_DRAINING


async def test_what_nobody_reads_is_bounded_and_cancelling_it_frees_the_others():
    big = "x" * (1 << 20)
    sent = []

    async def much(frame, context):
        if frame.HasField("cancel"):
            yield Frame(events=[tagged(2, "after"), tagged(2)])
        elif frame.tag == 1:
            for _ in range(32):
                yield Frame(events=[tagged(1, big)])
                sent.append(1)

    async with sharing(Sharing(much)) as shared:
        unread = await shared.generate(generate_request("x"))
        read = await shared.generate(generate_request("x"))
        await asyncio.sleep(0.2)
        held = shared._unread_bytes
        unread.cancel()
        assert [piece async for piece in read.text()] == ["after"]
        with pytest.raises(Cancelled):
            await anext(unread)

    assert 0 < held <= multiplex.MAX_UNREAD_BYTES + len(big) + 64


@pytest.fixture
async def running(tmp_path):
    facts = msgspec.structs.replace(FACTS, context_tokens=4096)
    async with running_server(tmp_path, engine=FakeEngine(facts=facts)) as server:
        yield server


async def test_many_generations_share_a_call_to_the_real_server(running):
    requests = [generate_request(raw_tokens([1, 2, number]), at_most(6)) for number in range(1, 40)]
    async with Client(running.target) as client, client.shared_call() as shared:
        streams = [await shared.generate(request) for request in requests]
        long = await shared.generate(generate_request("count", at_most(3000)))
        long.cancel()
        texts = ["".join([piece async for piece in each.text()]) for each in streams]
        alone = [(await client.generate(each.prompt, each.config)) for each in requests]

    assert texts == [whole.outputs[0].text for whole in alone]
    assert all(each.completed.usage.output_tokens == 6 for each in streams)


async def test_programs_without_an_event_loop_share_calls_too(running):
    def program():
        with SyncClient(running.target) as client, client.shared_call() as shared:
            streams = [shared.generate(generate_request("x", at_most(4))) for _ in range(3)]
            return ["".join(stream.text()) for stream in streams]

    texts = await asyncio.to_thread(program)

    assert len(set(texts)) == 1
    assert texts[0] != ""
