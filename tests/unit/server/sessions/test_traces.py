"""Turns tell the trace that they are a part of."""

from pathlib import Path

import pytest
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions

from support.server import running_server
from support.session_rows import user

CALLS, OWN = "ab" * 16, "cd" * 16
CONFIG = GenerationConfig(stop=StopConditions(max_output_tokens=2))


def traceparent(trace_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-{'12' * 8}-{flags}"


@pytest.mark.parametrize(
    ("own", "of_the_call", "told"),
    [
        (traceparent(OWN), traceparent(CALLS), OWN),
        ("", traceparent(CALLS), CALLS),
        (traceparent(OWN, "00"), traceparent(CALLS), ""),
        ("broken", traceparent(CALLS), ""),
        ("", "", ""),
    ],
)
async def test_a_turn_is_part_of_its_own_trace_or_else_the_calls(
    tmp_path: Path, own: str, of_the_call: str, told: str
):
    async with running_server(tmp_path) as server:
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))
        start = StartTurn(turn_id="t", items=[user("hi")], config=CONFIG, traceparent=own)
        metadata = [("traceparent", of_the_call)] if of_the_call else []
        request = RunTurnRequest(session="sessions/a", turn=start)
        async for _ in server.sessions.RunTurn(request, metadata=metadata):
            pass

        turn = await server.sessions.GetTurn(GetTurnRequest(name="sessions/a/turns/t"))

    assert turn.trace_id == told
