"""What a first-time user does with the default model: ask, tell, and come back after a restart."""

from collections.abc import Iterator

import grpc
import pytest
from antiphon.v1 import inference_pb2_grpc, session_pb2_grpc
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    ListTurnsRequest,
    RunTurnRequest,
    StartTurn,
    TurnCompleted,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Conversation,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    SamplingParams,
    StopConditions,
)

from support.default_model import FIRST_USE_LIMIT_S, cache_home, default_checkpoint
from support.engine_zygote import forked
from support.serve_command import Command, Runner, serve_runner

pytestmark = [pytest.mark.default_model, pytest.mark.timeout(FIRST_USE_LIMIT_S)]

LIMIT_S = 300.0
BLOCK_TOKENS = 32
CONFIG = GenerationConfig(
    sampling=SamplingParams(temperature=0), stop=StopConditions(max_output_tokens=32)
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    directory = tmp_path_factory.mktemp("served")
    engine_command = forked("antiphon_engine")
    with serve_runner(directory, default_checkpoint(), engine_command=engine_command) as made:
        yield made


@pytest.fixture(scope="module")
def first(runner: Runner) -> Command:
    return start(runner)


@pytest.fixture(scope="module")
def address(first: Command) -> str:
    return first.read_address()


def start(runner: Runner) -> Command:
    """Starts a server on the store of both, with what the user's servers have packed before."""
    store = str(runner.directory / "sessions.db")
    return runner.start("--store", store, environ=[("XDG_CACHE_HOME", str(cache_home()))])


def said(text: str) -> Item:
    return Item(message=ChatMessage(role=Role.ROLE_USER, text=text))


def answer(channel: grpc.Channel, question: str) -> str:
    """Asks both ways and returns what both say."""
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = GenerateRequest(
        prompt=Prompt(conversation=Conversation(items=[said(question)])), config=CONFIG
    )
    text: str = stub.Generate(request, timeout=LIMIT_S).outputs[0].text
    assert "".join(r.delta.text for r in stub.StreamGenerate(request, timeout=LIMIT_S)) == text
    return text


def run_turn(channel: grpc.Channel, session: str, text: str) -> tuple[str, TurnCompleted]:
    """Returns a turn's answer, and how it ended."""
    stub = session_pb2_grpc.SessionServiceStub(channel)
    request = RunTurnRequest(session=session, turn=StartTurn(items=[said(text)], config=CONFIG))
    events = list(stub.RunTurn(request, timeout=LIMIT_S))
    assert events[-1].HasField("completed")
    return "".join(event.delta.text for event in events), events[-1].completed


@pytest.mark.parametrize(
    ("question", "known"),
    [("What is the capital of France?", "Paris"), ("What is 2 + 2?", "4")],
)
def test_it_knows_the_simplest_things(address: str, question: str, known: str) -> None:
    with grpc.insecure_channel(address) as channel:
        assert known in answer(channel, question)


def test_it_knows_a_name_in_the_next_turn_and_after_a_restart(
    runner: Runner, first: Command, address: str
) -> None:
    with grpc.insecure_channel(address) as channel:
        sessions = session_pb2_grpc.SessionServiceStub(channel)
        session = sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S).name
        _, told = run_turn(channel, session, "Hello! My name is Marguerite.")
        asked_at_once, asked = run_turn(channel, session, "What is my name?")
        before = sessions.ListTurns(ListTurnsRequest(session=session), timeout=LIMIT_S)
    exit_status, log = first.end()
    assert exit_status == 0, log

    second = start(runner)
    with grpc.insecure_channel(second.read_address()) as channel:
        sessions = session_pb2_grpc.SessionServiceStub(channel)
        after = sessions.ListTurns(ListTurnsRequest(session=session), timeout=LIMIT_S)
        asked_later, _ = run_turn(channel, session, "Please tell me my name once more.")

    assert "Marguerite" in asked_at_once
    assert "Marguerite" in asked_later
    assert after == before
    context_before = told.usage.prompt_tokens + told.usage.output_tokens
    reusable = (context_before - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert asked.usage.cached_prompt_tokens >= reusable
