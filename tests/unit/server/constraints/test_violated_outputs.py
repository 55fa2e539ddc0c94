"""Answers that ended by themselves and are not as they had to be: failures, never answers."""

from pathlib import Path

import grpc
import pytest
from antiphon.v1.admin_pb2 import GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    GetSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
)
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    FinishReason,
    GenerationConfig,
    OutputOptions,
    Prompt,
    StopConditions,
)

from support.fake_engine import FakeEngine
from support.server import RunningServer, details_of, running_server
from support.session_rows import user
from support.turn_runs import new_session

LIMIT_S = 60.0
YES_OR_NO = Constraint(choice=Choice(options=["yes", "no"]))


def says(server: RunningServer, engine: FakeEngine, text: str, *, ends: bool = True) -> None:
    """Has the engine say a text, whatever it is held to."""
    tokenizer = server.model.tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=False)
    end_ids = sorted(server.model.end_ids)[:1] if ends else ids[:1]
    engine.script = lambda _request, _index: (*ids, *end_ids * 100)


def config(**values: object) -> GenerationConfig:
    return GenerationConfig(
        stop=StopConditions(max_output_tokens=40), constraint=YES_OR_NO, **values
    )


def request(**values: object) -> GenerateRequest:
    return GenerateRequest(prompt=Prompt(text="hi"), config=config(**values))


def reason_of(error: grpc.aio.AioRpcError) -> str:
    return str(details_of(error)["ErrorInfo"].reason)


async def read(call: grpc.aio.UnaryStreamCall) -> tuple[list[str], str]:
    """Returns what a stream told, by the events' names, and why it failed."""
    told = []
    try:
        async for message in call:
            told.append(message.WhichOneof("event"))
    except grpc.aio.AioRpcError as error:
        return told, reason_of(error)
    return told, ""


async def test_a_violation_is_a_failure_in_every_way_and_is_counted(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as server:
        says(server, engine, "maybe")
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await server.inference.Generate(request(), timeout=LIMIT_S)
        told, reason = await read(server.inference.StreamGenerate(request(), timeout=LIMIT_S))
        stats = await server.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)

    assert unary.value.code() is grpc.StatusCode.INTERNAL
    assert (reason_of(unary.value), reason) == ("CONSTRAINT_VIOLATED", "CONSTRAINT_VIOLATED")
    assert not {"output_finished", "completed"} & set(told)
    assert stats.num_finished_total["CONSTRAINT_VIOLATED"] == 2


async def test_a_turn_that_violates_fails_once_and_leaves_the_session_as_it_was(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as server:
        says(server, engine, "maybe")
        session = await new_session(server)
        start = StartTurn(turn_id="t1", items=[user("Is it?")], config=config())
        call = RunTurnRequest(session=session, turn=start)
        told, reason = await read(server.sessions.RunTurn(call, timeout=LIMIT_S))
        turn = await server.sessions.GetTurn(
            GetTurnRequest(name=f"{session}/turns/t1"), timeout=LIMIT_S
        )
        kept = await server.sessions.GetSession(GetSessionRequest(name=session), timeout=LIMIT_S)

    assert reason == "CONSTRAINT_VIOLATED"
    assert told.count("failed") == 1
    assert told[-1] == "failed"
    assert turn.state == Turn.STATE_FAILED
    assert turn.failure.reason == "CONSTRAINT_VIOLATED"
    assert kept.head_turn == ""


async def test_what_did_not_end_by_itself_is_told_as_it_is(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as server:
        says(server, engine, "may", ends=False)
        (output,) = (await server.inference.Generate(request(), timeout=LIMIT_S)).outputs

    assert output.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
    assert output.text.startswith("may")


async def test_the_token_that_ends_an_answer_is_no_part_of_it(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as server:
        says(server, engine, "yes")
        shown = request(output=OutputOptions(special_tokens=True, token_ids=True))
        (output,) = (await server.inference.Generate(shown, timeout=LIMIT_S)).outputs

    assert output.finish_reason == FinishReason.FINISH_REASON_STOP
    assert output.text.startswith("yes<")
    (sent,) = engine.requests
    assert sent.request.grammar is not None
    assert '"yes"' in sent.request.grammar.text
