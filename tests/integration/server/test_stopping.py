"""`antiphon serve` that is told to stop while a turn runs."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
    StreamTurnEventsRequest,
    TurnEvent,
)
from antiphon.v1.session_pb2_grpc import SessionServiceStub
from antiphon.v1.types_pb2 import FinishReason, GenerationConfig, SamplingParams, StopConditions

from support.serve_command import Runner
from support.server import details_of
from support.session_rows import user
from support.tiny_runner import tiny_runner

TURN = StartTurn(
    turn_id="t",
    items=[user("The harbour lay")],
    config=GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_output_tokens=60, ignore_eos=True),
    ),
)
NAME = "sessions/s/turns/t"
SLOW = ("--set", "engine.fault_delay_commit_ms=100")
"""A turn takes 6 s, far more than the limit."""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with tiny_runner(tmp_path) as made:
        yield made


def run_turn(sessions: SessionServiceStub) -> "grpc.UnaryStreamCall[RunTurnRequest, TurnEvent]":
    """Starts the turn and reads some of it."""
    sessions.CreateSession(CreateSessionRequest(session_id="s"))
    call = sessions.RunTurn(RunTurnRequest(session="sessions/s", turn=TURN))
    while not next(call).HasField("delta"):
        pass
    return call


def test_turn_that_a_signal_meets_is_finished_by_the_next_server(
    runner: Runner, tmp_path: Path
) -> None:
    store = ("--store", str(tmp_path / "kept.db"))
    first = runner.start(*store, *SLOW, "--set", "server.drain_limit_s=1")
    with grpc.insecure_channel(first.read_address()) as channel:
        call = run_turn(SessionServiceStub(channel))
        exit_status, log = first.end()
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    again = runner.start(*store)
    with grpc.insecure_channel(again.read_address()) as channel:
        sessions = SessionServiceStub(channel)
        *_, last = sessions.StreamTurnEvents(StreamTurnEventsRequest(name=NAME), timeout=60)
        left = sessions.GetTurn(GetTurnRequest(name=NAME))
        sessions.CreateSession(CreateSessionRequest(session_id="other"))
        whole = [
            event.delta.text
            for event in sessions.RunTurn(RunTurnRequest(session="sessions/other", turn=TURN))
        ]

    assert exit_status == 0, log
    assert "Traceback" not in log
    (told,) = [line for line in log.splitlines() if "stopping when" in line]
    assert "a second Ctrl-C" in told
    assert "num_turns=1" in told
    assert "num_calls=1" in told
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details_of(caught.value)["ErrorInfo"].reason == "DRAINING"
    assert last.completed.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
    assert left.output.text == "".join(whole)
