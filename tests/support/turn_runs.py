"""Runs turns of sessions over gRPC and returns what came of them, prompts included."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.v1 import session_pb2_grpc
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    Session,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    GenerationConfig,
    Item,
    OutputOptions,
    Role,
    SamplingParams,
    StopConditions,
    Usage,
)

from support.answers import LIMIT_S, fold_turn


class SessionServer(Protocol):
    """What has sessions."""

    @property
    def sessions(self) -> session_pb2_grpc.SessionServiceStub: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRun:
    """A turn that was told whole and is kept as it was told."""

    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    finish_reason: int
    usage: Usage

    @property
    def context(self) -> list[int]:
        """All that the session's next prompt stands on."""
        return self.prompt_ids + self.output_ids


def greedy(max_output_tokens: int | None, *, seed: int | None = None) -> GenerationConfig:
    """Returns a config that shows all ids of prompt and output.

    A fake engine goes by the seed.
    """
    return GenerationConfig(
        sampling=SamplingParams(temperature=0, seed=seed),
        stop=StopConditions(max_output_tokens=max_output_tokens),
        output=OutputOptions(token_ids=True, prompt_token_ids=True),
    )


def said(role: "Role.ValueType", text: str) -> Item:
    return Item(message=ChatMessage(role=role, text=text))


async def new_session(server: SessionServer, **values: object) -> str:
    """Creates a session and returns its name."""
    request = CreateSessionRequest(session=Session(**values))
    return str((await server.sessions.CreateSession(request, timeout=LIMIT_S)).name)


async def run_turn(
    server: SessionServer, session: str, items: Sequence[Item], config: GenerationConfig
) -> TurnRun:
    """Runs a turn to its end, which must be a good one."""
    start = StartTurn(items=items, config=config)
    events = await events_of_turn(server, session, start)
    run = read_run(events)
    kept: Turn = await server.sessions.GetTurn(
        GetTurnRequest(name=f"{session}/turns/{events[0].turn_id}"), timeout=LIMIT_S
    )
    assert kept.state == Turn.STATE_COMPLETED
    assert (kept.output.text, list(kept.output.token_ids)) == (run.text, run.output_ids)
    return run


async def events_of_turn(server: SessionServer, session: str, start: StartTurn) -> list[TurnEvent]:
    """Reads a turn to its end. Raises AioRpcError where it is refused or fails."""
    call = server.sessions.RunTurn(RunTurnRequest(session=session, turn=start), timeout=LIMIT_S)
    return [event async for event in call]


def prompt_of(events: Sequence[TurnEvent]) -> list[int]:
    """Returns the prompt's ids, where they are told."""
    return [token_id for event in events for token_id in event.prompt_part.token_ids]


def output_of(events: Sequence[TurnEvent]) -> list[int]:
    """Returns the output's ids, where they are told."""
    return [token_id for event in events for token_id in event.delta.token_ids]


def read_run(events: Sequence[TurnEvent]) -> TurnRun:
    """Returns what a completed turn's events add up to; fails where they break a rule."""
    output = fold_turn(events)
    return TurnRun(
        prompt_ids=prompt_of(events),
        output_ids=list(output.token_ids),
        text=output.text,
        finish_reason=output.finish_reason,
        usage=events[-1].completed.usage,
    )
