from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1.session_pb2 import CreateSessionRequest, RunTurnRequest, Session, StartTurn
from antiphon.v1.types_pb2 import GenerationConfig, Tool, ToolChoice

from support.chat_templates import CHATML_WITH_TOOLS
from support.server import RunningServer, details_of, running_server
from support.tiny_tokenizers import save_byte_level_tokenizer

SESSION = "sessions/mine"
LIMIT_S = 60.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    checkpoint = save_byte_level_tokenizer(tmp_path / "tokenizer")
    (checkpoint / "chat_template.jinja").write_text(CHATML_WITH_TOOLS)
    async with running_server(tmp_path, checkpoint=checkpoint) as running:
        session = Session(tools=[Tool(name="now")])
        request = CreateSessionRequest(session_id="mine", session=session)
        await running.sessions.CreateSession(request, timeout=LIMIT_S)
        yield running


def going_on(choice: ToolChoice) -> RunTurnRequest:
    config = GenerationConfig(tool_choice=choice)
    return RunTurnRequest(session=SESSION, turn=StartTurn(continue_answer=True, config=config))


@pytest.mark.parametrize(
    "choice", [ToolChoice(mode=ToolChoice.MODE_REQUIRED), ToolChoice(tool_name="now")]
)
async def test_to_go_on_with_an_answer_does_not_go_with_a_call_that_must_come(
    server: RunningServer, choice: ToolChoice
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.sessions.RunTurn(going_on(choice), timeout=LIMIT_S).read()

    (violation,) = details_of(caught.value)["BadRequest"].field_violations
    assert violation.field == "turn.continue_answer"
    assert "a tool that must be called" in violation.description


async def test_to_go_on_with_an_answer_goes_with_tools_that_need_not_be_called(
    server: RunningServer,
) -> None:
    choice = ToolChoice(mode=ToolChoice.MODE_NONE)

    first = await server.sessions.RunTurn(going_on(choice), timeout=LIMIT_S).read()

    assert first.HasField("accepted")
