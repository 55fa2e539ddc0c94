"""Messages beyond gRPC's usual 4 MiB: taken up to the limit that is told, refused beyond it."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.model_pb2 import GetModelRequest
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    CreateSessionRequest,
    DeleteSessionRequest,
    ListSessionsRequest,
    ListTurnsRequest,
    OpenSession,
    RunTurnRequest,
    Session,
    StartTurn,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Constraint,
    Conversation,
    GenerationConfig,
    Item,
    Prompt,
    Role,
)

from support.failing import refused_call
from support.server import RunningServer, details_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT_S = 110.0
USUAL_LIMIT_BYTES: Final = 4 << 20
"""Of a client that sets none."""
LONG_WORD: Final = " " + "carpentersmeasuredeverywoodenbeambeforeraisingtheframework" * 3
"""Long words are encoded much faster than short ones."""

Send = Callable[[RunningServer, str], Awaitable[None]]


def message(text: str) -> Item:
    return Item(message=ChatMessage(role=Role.ROLE_USER, text=text))


def text_of(size_bytes: int) -> str:
    return (LONG_WORD * (size_bytes // len(LONG_WORD) + 1))[:size_bytes]


async def generate(server: RunningServer, text: str) -> None:
    await server.inference.Generate(GenerateRequest(prompt=Prompt(text=text)), timeout=LIMIT_S)


async def stream(server: RunningServer, text: str) -> None:
    prompt = Prompt(conversation=Conversation(items=[message(text)]))
    async for _ in server.inference.StreamGenerate(GenerateRequest(prompt=prompt), timeout=LIMIT_S):
        pass


async def run_turn_of(server: RunningServer, session: str, text: str) -> None:
    request = RunTurnRequest(session=session, turn=StartTurn(items=[message(text)]))
    async for _ in server.sessions.RunTurn(request, timeout=LIMIT_S):
        pass


async def run_turn(server: RunningServer, text: str) -> None:
    session = (await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)).name
    try:
        await run_turn_of(server, session, text)
    finally:
        await server.sessions.DeleteSession(DeleteSessionRequest(name=session), timeout=LIMIT_S)


async def converse(server: RunningServer, text: str) -> None:
    async def frames() -> AsyncIterator[ConverseRequest]:
        yield ConverseRequest(open=OpenSession(create=CreateSessionRequest()))
        yield ConverseRequest(generate=StartTurn(items=[message(text)]))

    async for _ in server.sessions.Converse(frames(), timeout=LIMIT_S):
        pass


async def test_limit_is_told(tiny: RunningServer) -> None:
    model = await tiny.models.GetModel(GetModelRequest(name="models/tiny"), timeout=LIMIT_S)

    assert model.limits.max_message_bytes == 16 << 20


@pytest.mark.parametrize("send", [generate, stream, run_turn, converse])
async def test_message_over_the_limit_is_refused_with_both_sizes(
    tiny: RunningServer, send: Send
) -> None:
    size_bytes = 40_000_000

    error = await refused_call(send(tiny, text_of(size_bytes)))

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    received, limit = map(int, re.findall(r"\d+", error.details()))
    assert size_bytes < received < size_bytes + 1000
    assert limit == 16 << 20


@pytest.mark.parametrize(
    ("send", "size_bytes"),
    [(generate, 3_900_000), (stream, 4_100_000), (run_turn, 4_400_000)],
)
async def test_prompt_under_the_limit_is_answered_for_what_it_is(
    tiny: RunningServer, send: Send, size_bytes: int
) -> None:
    error = await refused_call(send(tiny, text_of(size_bytes)))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(error)["ErrorInfo"].reason == "CONTEXT_LENGTH_EXCEEDED"
    assert "512" in error.details()


async def test_large_schema_is_refused_for_its_size_by_name(
    tiny: RunningServer,
) -> None:
    schema = '{"description": "%s"}' % ("x" * 5_000_000)
    request = GenerateRequest(
        prompt=Prompt(text="Go on."),
        config=GenerationConfig(constraint=Constraint(json_schema=schema)),
    )

    error = await refused_call(tiny.inference.Generate(request, timeout=LIMIT_S))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "config.constraint.json_schema" in error.details()
    assert "262144" in error.details()


async def test_history_of_more_than_a_message_comes_in_pages(tiny: RunningServer) -> None:
    session = (await tiny.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)).name
    texts = [f"{number} {text_of(900_000)}" for number in range(5)]
    for text in texts:
        # Too long for the model, and listed nevertheless.
        await refused_call(run_turn_of(tiny, session, text))
    found, page_token = [], ""

    while True:
        page = await tiny.sessions.ListTurns(
            ListTurnsRequest(session=session, show_all=True, page_token=page_token),
            timeout=LIMIT_S,
        )
        assert page.ByteSize() <= 2 << 20
        found += [turn.input[0].message.text for turn in page.turns]
        page_token = page.next_page_token
        if not page_token:
            break

    assert sum(map(len, found)) > USUAL_LIMIT_BYTES
    assert found == texts
    await tiny.sessions.DeleteSession(DeleteSessionRequest(name=session), timeout=LIMIT_S)


async def test_list_of_sessions_of_more_than_a_message_comes_in_pages(tiny: RunningServer) -> None:
    labels = {"of": "large ones"}
    created = [
        await tiny.sessions.CreateSession(
            CreateSessionRequest(session=Session(instructions="x" * 1_500_000, labels=labels)),
            timeout=LIMIT_S,
        )
        for _ in range(4)
    ]
    found, page_token = [], ""

    while True:
        page = await tiny.sessions.ListSessions(
            ListSessionsRequest(labels=labels, page_token=page_token), timeout=LIMIT_S
        )
        found += page.sessions
        page_token = page.next_page_token
        if not page_token:
            break

    assert sum(session.ByteSize() for session in found) > USUAL_LIMIT_BYTES
    assert [s.name for s in found] == [s.name for s in reversed(created)]
    for session in created:
        await tiny.sessions.DeleteSession(DeleteSessionRequest(name=session.name), timeout=LIMIT_S)
