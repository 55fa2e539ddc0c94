"""What requests of a multiplexed stream may ask, each for itself."""

import grpc
import pytest
from antiphon.v1.inference_pb2 import (
    CancelGeneration,
    GenerateRequest,
    MultiplexGenerateRequest,
)
from google.protobuf.duration_pb2 import Duration

from support.multiplexing import MultiplexSetup, endless, say, stream_text, until

TRACE = f"00-{7:032x}-{8:016x}-01"


@pytest.mark.parametrize(
    ("frame", "reason", "field"),
    [
        (MultiplexGenerateRequest(), "INVALID_FIELD", "instruction"),
        (
            MultiplexGenerateRequest(generate=GenerateRequest()),
            "INVALID_FIELD",
            "generate.prompt",
        ),
        (
            MultiplexGenerateRequest(generate=GenerateRequest(model="models/no")),
            "MODEL_NOT_FOUND",
            "",
        ),
        (
            MultiplexGenerateRequest(
                generate=GenerateRequest(config={"sampling": {"temperature": -1}})
            ),
            "INVALID_FIELD",
            "generate.config.sampling.temperature",
        ),
        (MultiplexGenerateRequest(generate=say(), timeout=Duration()), "INVALID_FIELD", "timeout"),
        (
            MultiplexGenerateRequest(generate=say(), cache_scope="x" * 257),
            "INVALID_FIELD",
            "cache_scope",
        ),
        (
            MultiplexGenerateRequest(cancel=CancelGeneration(), cache_scope="x"),
            "INVALID_FIELD",
            "cache_scope",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_refused_request_fails_alone(
    frame: MultiplexGenerateRequest, reason: str, field: str, multiplex: MultiplexSetup
) -> None:
    frame.tag = 9
    caller = multiplex.open()
    await caller.start(1, say())
    await caller.send(frame)
    await caller.start(2, say())

    status = await caller.finish()

    assert status is grpc.StatusCode.OK
    assert caller.told[9].reasons == [reason]
    named = [violation.field for violation in caller.told[9].failures[0].field_violations]
    assert named == ([field] if field else [])
    assert not caller.told[9].events
    assert caller.told[1].text == caller.told[2].text == await stream_text(multiplex.server, say())


async def test_unknown_field_is_refused_under_its_tag(multiplex: MultiplexSetup) -> None:
    caller = multiplex.open()
    frame = MultiplexGenerateRequest.FromString(
        MultiplexGenerateRequest(tag=5, generate=say()).SerializeToString() + b"\xf8\x3e\x01"
    )
    await caller.send(frame)

    assert await caller.finish() is grpc.StatusCode.OK
    assert caller.told[5].reasons == ["INVALID_FIELD"]


@pytest.mark.parametrize("phase", ["waiting for a place", "waiting for the engine", "running"])
async def test_timeout_fails_its_request_alone(phase: str, multiplex: MultiplexSetup) -> None:
    caller = multiplex.open()
    caller.read_on()
    multiplex.engine.hold()
    if phase == "waiting for a place":
        for tag in range(4):
            await caller.start(tag, endless())
        await until(lambda: multiplex.engine.num_waiting == 4)
    await caller.start(7, endless(), timeout=Duration(nanos=200_000_000))
    if phase == "running":
        await until(lambda: multiplex.engine.num_waiting == 1)
        multiplex.engine.step()

    await caller.until_ended(7)
    await caller.start(8, say())
    multiplex.engine.release()

    assert await caller.finish() is grpc.StatusCode.OK
    assert caller.told[7].reasons == ["TIMEOUT"]
    assert ("started" in caller.told[7].kinds) == (phase == "running")
    assert caller.told[8].num_ends == 1


async def test_terms_of_a_request_reach_the_engine(multiplex: MultiplexSetup) -> None:
    caller = multiplex.open(metadata=[("traceparent", f"00-{5:032x}-{6:016x}-00")])
    await caller.start(1, say())
    await caller.start(2, say(), cache_scope="user 7", traceparent=TRACE, tracestate="a=1")
    await caller.start(3, say(), traceparent="not one", tracestate="a=1")

    assert await caller.finish() is grpc.StatusCode.OK
    plain, own, broken = (request.request for request in multiplex.engine.requests)
    assert (plain.scope.cache_scope, own.scope.cache_scope) == ("", "user 7")
    assert (plain.traceparent, plain.tracestate) == (f"00-{5:032x}-{6:016x}-00", "")
    assert (own.traceparent, own.tracestate) == (TRACE, "a=1")
    assert broken.traceparent == plain.traceparent


async def test_prefixes_are_shared_within_a_cache_scope_only(multiplex: MultiplexSetup) -> None:
    long = "a rather long prompt that fills some blocks of the cache, twice over " * 2
    caller = multiplex.open()
    caller.read_on()
    for tag, cache_scope in enumerate(["x", "y", "x"]):
        await caller.start(tag, say(long), cache_scope=cache_scope)
        await caller.until_ended(tag)

    assert await caller.finish() is grpc.StatusCode.OK
    first, other, again = (
        caller.told[tag].events[0].started.cached_prompt_tokens for tag in range(3)
    )
    assert (first, other) == (0, 0)
    assert again > 0
