"""Half-closing says that no more is to be asked; what was asked is answered all the same."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    DeleteSessionRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    GenerationConfig,
    GoAway,
    Item,
    Role,
    SamplingParams,
    StopConditions,
)

from support.answers import fold_turn
from support.server import RunningServer, details_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT_S = 60.0
TEXTS = ("Which of them is the largest?", "And the smallest?", "Write both down.")


def turn(text: str, *, max_output_tokens: int = 12) -> StartTurn:
    return StartTurn(
        items=[Item(message=ChatMessage(role=Role.ROLE_USER, text=text))],
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(max_output_tokens=max_output_tokens, ignore_eos=True),
        ),
    )


async def new_session(server: RunningServer) -> str:
    return (await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)).name


def frames_for(session: str, texts: Sequence[str]) -> list[ConverseRequest]:
    return [
        ConverseRequest(open=OpenSession(name=session)),
        *(ConverseRequest(generate=turn(text)) for text in texts),
    ]


async def iterate(frames: Sequence[ConverseRequest]) -> AsyncIterator[ConverseRequest]:
    """As most clients send: the call is half-closed as soon as the iterator ends."""
    for frame in frames:
        yield frame


def answers_in(responses: Sequence[ConverseResponse]) -> list[str]:
    """Returns the text of each turn, in the order in which they ended."""
    events = [response.turn_event for response in responses]
    turn_ids = list(dict.fromkeys(event.turn_id for event in events))
    return [fold_turn([e for e in events if e.turn_id == turn_id]).text for turn_id in turn_ids]


async def answers_alone(server: RunningServer, texts: Sequence[str]) -> list[str]:
    """Returns what the same turns say, each in a call of its own."""
    session, answers = await new_session(server), []
    for text in texts:
        call = server.sessions.RunTurn(
            RunTurnRequest(session=session, turn=turn(text)), timeout=LIMIT_S
        )
        answers.append(fold_turn([event async for event in call]).text)
    return answers


async def read_into(responses: list[ConverseResponse], call: grpc.aio.StreamStreamCall) -> None:
    """Reads until the call ends."""
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)


@pytest.mark.parametrize("num_turns", [1, 2, 3])
async def test_turns_behind_which_the_caller_half_closes_at_once_are_answered_in_full(
    tiny: RunningServer, num_turns: int
) -> None:
    texts = TEXTS[:num_turns]
    expected = await answers_alone(tiny, texts)
    frames = frames_for(await new_session(tiny), texts)

    call = tiny.sessions.Converse(iterate(frames), timeout=LIMIT_S)
    responses = [response async for response in call]

    assert responses[0].WhichOneof("frame") == "opened"
    assert answers_in(responses[1:]) == expected
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(("num_frames", "num_answers"), [(0, 0), (1, 1)])
async def test_half_close_without_a_turn_ends_the_call_well(
    tiny: RunningServer, num_frames: int, num_answers: int
) -> None:
    frames = frames_for(await new_session(tiny), [])[:num_frames]

    call = tiny.sessions.Converse(iterate(frames), timeout=LIMIT_S)
    responses = [response async for response in call]

    assert [response.WhichOneof("frame") for response in responses] == ["opened"] * num_answers
    assert await call.code() is grpc.StatusCode.OK


async def test_stream_may_idle_between_its_turns_and_before_its_half_close(
    tiny: RunningServer,
) -> None:
    expected = await answers_alone(tiny, TEXTS[:2])
    first, *turns = frames_for(await new_session(tiny), TEXTS[:2])
    call = tiny.sessions.Converse(timeout=LIMIT_S)
    await call.write(first)
    responses = [await call.read()]
    for frame in turns:
        await call.write(frame)
        while responses[-1].turn_event.WhichOneof("event") != "completed":
            responses.append(await call.read())
        responses.append(ConverseResponse())
        await asyncio.sleep(0.5)
        assert not call.done()

    await call.done_writing()

    assert await call.read() is grpc.aio.EOF
    told = [response for response in responses[1:] if response.HasField("turn_event")]
    assert answers_in(told) == expected
    assert await call.code() is grpc.StatusCode.OK


async def test_error_ends_the_call_both_ways_while_the_caller_still_sends(
    tiny: RunningServer,
) -> None:
    session = await new_session(tiny)
    call = tiny.sessions.Converse(timeout=LIMIT_S)
    await call.write(ConverseRequest(open=OpenSession(name=session)))
    await call.write(ConverseRequest(generate=turn(TEXTS[0], max_output_tokens=400)))
    while (await call.read()).turn_event.WhichOneof("event") != "delta":
        pass

    await tiny.sessions.DeleteSession(DeleteSessionRequest(name=session), timeout=LIMIT_S)
    responses: list[ConverseResponse] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_into(responses, call)

    kinds = [r.turn_event.WhichOneof("event") for r in responses if r.HasField("turn_event")]
    assert [kind in ("completed", "failed") for kind in kinds].count(True) == 1
    assert responses[-1].go_away.reason == GoAway.REASON_SESSION_GONE
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(caught.value)["ErrorInfo"].reason == "SESSION_NOT_FOUND"
    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await call.write(ConverseRequest(generate=turn(TEXTS[1])))
