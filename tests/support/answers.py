"""Reads answers off the wire in every way there is, and holds each stream to what it must keep to.

A stream begins with `started`; each output's deltas come before its one `output_finished`; one
`completed` ends it all; no message says nothing. A tool call's pieces come in a row and make up its
arguments; the call as a whole comes once, behind them and before its output's end.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
    OutputFinished,
    StreamGenerateResponse,
)
from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
    TurnCompleted,
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
    TokenLogprob,
    ToolCall,
    Usage,
)

from support.server import RunningServer

LIMIT_S = 60.0
MAX_ROUNDING = 1e-4
"""What a logarithm may differ by where the prompt was computed in other pieces."""
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
    assert _logprobs(streamed) == pytest.approx(_logprobs(unary), abs=MAX_ROUNDING)
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
    folded = GenerateResponse(usage=last.completed.usage, timings=last.completed.timings)
    assert first.started.prompt_tokens == folded.usage.prompt_tokens
    assert first.started.cached_prompt_tokens == folded.usage.cached_prompt_tokens
    outputs = [OutputFold(index=index) for index in range(num_outputs)]
    for response in responses[1:-1]:
        kind = response.WhichOneof("event")
        if kind == "prompt_part":
            report = response.prompt_part
            folded.prompt_token_ids.extend(report.token_ids)
            folded.prompt_logprobs.extend(report.logprobs[0 if report.first_position else 1 :])
        elif kind == "delta":
            outputs[response.delta.output_index].add_delta(response.delta)
        elif kind == "tool_call":
            outputs[response.tool_call.output_index].add_call(response.tool_call.tool_call)
        else:
            assert kind == "output_finished"
            finished = response.output_finished
            outputs[finished.output_index].finish(finished)
    folded.outputs.extend(output.whole() for output in outputs)
    return folded


def fold_turn(events: Sequence[TurnEvent]) -> Output:
    """Returns the output that a turn's events add up to; fails where they break a rule."""
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:2] == ["accepted", "started"]
    assert kinds[-1] == "completed"
    assert set(kinds[2:-1]) <= {"delta", "prompt_part", "tool_call"}
    assert len({event.turn_id for event in events}) == 1
    following = 1
    for event in events:
        assert event.first_sequence == following
        following = event.sequence + 1
    output = OutputFold()
    for event in events:
        if event.HasField("delta"):
            output.add_delta(event.delta)
        elif event.HasField("tool_call"):
            output.add_call(event.tool_call)
    output.finish(events[-1].completed)
    assert events[-1].completed.usage.prompt_tokens == events[1].started.prompt_tokens
    return output.whole()


class OutputFold:
    """One output as its events add up."""

    def __init__(self, index: int = 0) -> None:
        self._output = Output(index=index)
        self._open: ToolCall | None = None

    @property
    def open_call(self) -> ToolCall | None:
        """The call that has begun and was not told as a whole."""
        return self._open

    def add_delta(self, delta: Delta) -> None:
        output = self._output
        assert not output.finish_reason, "nothing comes behind an output's end"
        assert delta.text or delta.token_ids or delta.logprobs, "no message says nothing"
        output.token_ids.extend(delta.token_ids)
        output.logprobs.extend(delta.logprobs)
        if delta.channel == OutputChannel.OUTPUT_CHANNEL_TOOL_CALL:
            self._add_arguments(delta)
            return
        assert delta.call_id == delta.tool_name == ""
        if delta.channel == OutputChannel.OUTPUT_CHANNEL_REASONING:
            assert not any((output.text, output.tool_calls, self._open)), "thinking comes first"
            output.reasoning += delta.text
        else:
            assert delta.channel == OutputChannel.OUTPUT_CHANNEL_CONTENT
            assert not (delta.text and (output.tool_calls or self._open)), "calls come last"
            output.text += delta.text

    def add_call(self, call: ToolCall) -> None:
        """Takes in a call that is complete; it says again what its pieces said."""
        assert not self._output.finish_reason
        assert call == self._open
        assert isinstance(json.loads(call.arguments_json), dict)
        self._output.tool_calls.append(call)
        self._open = None

    def finish(self, finished: OutputFinished | TurnCompleted) -> None:
        output = self._output
        assert not output.finish_reason, "an output ends once"
        output.finish_reason = finished.finish_reason
        assert output.finish_reason in FinishReason.values()
        if finished.HasField("stop_match"):
            output.stop_match.CopyFrom(finished.stop_match)
        if output.finish_reason == FinishReason.FINISH_REASON_TOOL_CALLS:
            assert output.tool_calls
            assert self._open is None
        if output.finish_reason == FinishReason.FINISH_REASON_STOP:
            assert not output.tool_calls
            assert self._open is None

    def whole(self) -> Output:
        assert self._output.finish_reason
        return self._output

    def _add_arguments(self, delta: Delta) -> None:
        if self._open is None or delta.tool_name:
            assert self._open is None, "a call is told as a whole before the next begins"
            assert delta.tool_name, "a call's first piece names its tool"
            assert delta.call_id not in {call.call_id for call in self._output.tool_calls}
            self._open = ToolCall(call_id=delta.call_id, tool_name=delta.tool_name)
        assert delta.call_id == self._open.call_id
        self._open.arguments_json += delta.text


def without_circumstances(response: GenerateResponse) -> GenerateResponse:
    """Returns an answer without what may differ from one time to the next."""
    same = GenerateResponse.FromString(response.SerializeToString())
    same.ClearField("timings")
    same.usage.ClearField("cached_prompt_tokens")
    same.ClearField("outputs")
    same.outputs.extend(without_call_ids(output) for output in response.outputs)
    for entry in _entries(same):
        entry.ClearField("logprob")
    return same


def _logprobs(response: GenerateResponse) -> list[float]:
    return [entry.logprob for entry in _entries(response)]


def _entries(response: GenerateResponse) -> list[TokenLogprob]:
    """Returns all entries of an answer, in order."""
    told = [*response.prompt_logprobs, *(at for one in response.outputs for at in one.logprobs)]
    return [entry for at in told for entry in (at.chosen, *at.top)]


def without_call_ids(output: Output) -> Output:
    """Returns an output without the ids that each request gives its calls."""
    same = Output.FromString(output.SerializeToString())
    for call in same.tool_calls:
        call.ClearField("call_id")
    return same
