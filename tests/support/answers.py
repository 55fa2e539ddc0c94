"""Reads answers off the wire in every way there is, and holds each stream to what it must keep to.

A stream begins with `started`; each output's deltas come before its one `output_finished`; one
`completed` ends it all; no message says nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.v1.inference_pb2 import GenerateRequest, GenerateResponse, StreamGenerateResponse
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Delta,
    FinishReason,
    GenerationConfig,
    Item,
    Output,
    OutputChannel,
    PositionLogprobs,
    Role,
    Usage,
)

from support.server import RunningServer

LIMIT_S = 60.0
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that was the same in every way it was asked for."""

    outputs: Sequence[Output]
    usage: Usage
    pieces: Sequence[str]
    """The texts of the stream's deltas, of all outputs."""
    prompt_token_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[PositionLogprobs] = ()

    @property
    def output(self) -> Output:
        """The only output."""
        (output,) = self.outputs
        return output

    @property
    def text(self) -> str:
        return self.output.text


async def ask(server: RunningServer, request: GenerateRequest) -> Answer:
    """Asks unary and streaming, checks the stream and that both say the same, and returns that."""
    unary = await server.inference.Generate(request, timeout=LIMIT_S)
    call = server.inference.StreamGenerate(request, timeout=LIMIT_S)
    responses = [response async for response in call]
    num_outputs = request.num_outputs or 1

    streamed = fold(responses, num_outputs)

    assert without_circumstances(streamed) == without_circumstances(unary)
    return Answer(
        outputs=unary.outputs,
        usage=unary.usage,
        pieces=[r.delta.text for r in responses if r.HasField("delta")],
        prompt_token_ids=unary.prompt_token_ids,
        prompt_logprobs=unary.prompt_logprobs,
    )


async def ask_in_session(
    server: RunningServer, text: str, config: GenerationConfig, *, session: str = ""
) -> tuple[str, Turn]:
    """Asks in a turn of a session, a new one where none is named.

    Returns:
        The session's name, and the turn as it is kept, after a check that the events said the same.
    """
    if not session:
        created = await server.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)
        session = created.name
    events = await run_turn(server, session, text, config)
    told = fold_turn(events)
    turn: Turn = await server.sessions.GetTurn(
        GetTurnRequest(name=f"{session}/turns/{events[0].turn_id}"), timeout=LIMIT_S
    )
    kept = Output.FromString(turn.output.SerializeToString())
    if not config.output.token_ids:
        kept.ClearField("token_ids")
    assert kept == told
    assert turn.state == Turn.STATE_COMPLETED
    return session, turn


async def run_turn(
    server: RunningServer, session: str, text: str, config: GenerationConfig
) -> list[TurnEvent]:
    """Runs a turn in a session to its end and returns its events."""
    item = Item(message=ChatMessage(role=Role.ROLE_USER, text=text))
    request = RunTurnRequest(session=session, turn=StartTurn(items=[item], config=config))
    return [event async for event in server.sessions.RunTurn(request, timeout=LIMIT_S)]


def fold(responses: Sequence[StreamGenerateResponse], num_outputs: int) -> GenerateResponse:
    """Returns what a stream adds up to; fails where it breaks a rule of streams."""
    first, last = responses[0], responses[-1]
    assert first.WhichOneof("event") == "started"
    assert last.WhichOneof("event") == "completed"
    folded = GenerateResponse(
        outputs=[Output(index=index) for index in range(num_outputs)],
        usage=last.completed.usage,
        timings=last.completed.timings,
    )
    assert first.started.prompt_tokens == folded.usage.prompt_tokens
    assert first.started.cached_prompt_tokens == folded.usage.cached_prompt_tokens
    for response in responses[1:-1]:
        kind = response.WhichOneof("event")
        if kind == "prompt_part":
            report = response.prompt_part
            folded.prompt_token_ids.extend(report.token_ids)
            folded.prompt_logprobs.extend(report.logprobs[0 if report.first_position else 1 :])
            continue
        if kind == "delta":
            _add_delta(folded.outputs[response.delta.output_index], response.delta)
            continue
        assert kind == "output_finished"
        finished = response.output_finished
        _finish(folded.outputs[finished.output_index], finished)
    assert all(output.finish_reason for output in folded.outputs)
    return folded


def fold_turn(events: Sequence[TurnEvent]) -> Output:
    """Returns the output that a turn's events add up to; fails where they break a rule."""
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:2] == ["accepted", "started"]
    assert kinds[-1] == "completed"
    assert set(kinds[2:-1]) <= {"delta", "prompt_part"}
    assert len({event.turn_id for event in events}) == 1
    following = 1
    for event in events:
        assert event.first_sequence == following
        following = event.sequence + 1
    output = Output()
    for event in events:
        if event.HasField("delta"):
            _add_delta(output, event.delta)
    _finish(output, events[-1].completed)
    assert events[-1].completed.usage.prompt_tokens == events[1].started.prompt_tokens
    return output


def without_circumstances(response: GenerateResponse) -> GenerateResponse:
    """Returns an answer without what may differ from one time to the next."""
    same = GenerateResponse.FromString(response.SerializeToString())
    same.ClearField("timings")
    same.usage.ClearField("cached_prompt_tokens")
    return same


def _add_delta(output: Output, delta: Delta) -> None:
    assert not output.finish_reason, "nothing comes behind an output's end"
    assert delta.text or delta.token_ids or delta.logprobs, "no message says nothing"
    if delta.channel == OutputChannel.OUTPUT_CHANNEL_REASONING:
        assert not output.text, "thinking comes before the answer"
        output.reasoning += delta.text
    else:
        assert delta.channel == OutputChannel.OUTPUT_CHANNEL_CONTENT
        output.text += delta.text
    output.token_ids.extend(delta.token_ids)
    output.logprobs.extend(delta.logprobs)


def _finish(output: Output, finished: object) -> None:
    assert not output.finish_reason, "an output ends once"
    output.finish_reason = finished.finish_reason
    assert output.finish_reason in FinishReason.values()
    if finished.HasField("stop_match"):
        output.stop_match.CopyFrom(finished.stop_match)
