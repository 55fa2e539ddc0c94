"""Every stream ends exactly once, with a reason for each output and the usage of all of them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
import pytest
from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    MultiplexGenerateRequest,
    StreamGenerateResponse,
)
from antiphon.v1.session_pb2 import (
    CancelTurnRequest,
    CreateSessionRequest,
    RunTurnRequest,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    ChatMessage,
    FinishReason,
    GenerationConfig,
    Item,
    Output,
    OutputOptions,
    Prompt,
    Role,
    SamplingParams,
    StopConditions,
    StopMatch,
    TokenIds,
)
from google.protobuf.duration_pb2 import Duration

from support.answers import LIMIT_S, Answer, ask, ask_in_session, fold, fold_turn
from support.server import RunningServer, details_of
from support.tiny_checkpoints import CONTEXT_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = list(range(300, 340))
BUDGET = 48
END_ID = 2
"""One of the two tokens that end the tiny model's answers."""
COMMON = dict.fromkeys(range(400, 440), 4.0)
"""Tokens that an answer is likely to have sooner or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How answers are made to end, and how they may then say they have."""

    stop: StopConditions
    bias: Mapping[int, float] = field(default_factory=dict)
    prompt_tokens: int = 40
    reasons: frozenset["FinishReason.ValueType"]


OUT_OF_BUDGET = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
ENDS = {
    "end_token": End(
        stop=StopConditions(max_output_tokens=BUDGET),
        bias={END_ID: 6.0},
        reasons=frozenset({FinishReason.FINISH_REASON_STOP, OUT_OF_BUDGET}),
    ),
    "stop_string": End(
        stop=StopConditions(max_output_tokens=BUDGET, stop_strings=["th", "e "], ignore_eos=True),
        reasons=frozenset({FinishReason.FINISH_REASON_STOP_SEQUENCE, OUT_OF_BUDGET}),
    ),
    "stop_token": End(
        stop=StopConditions(
            max_output_tokens=BUDGET, stop_token_ids=range(400, 420), ignore_eos=True
        ),
        bias=COMMON,
        reasons=frozenset({FinishReason.FINISH_REASON_STOP_SEQUENCE, OUT_OF_BUDGET}),
    ),
    "budget": End(
        stop=StopConditions(max_output_tokens=9, ignore_eos=True),
        reasons=frozenset({OUT_OF_BUDGET}),
    ),
    "one_token": End(
        stop=StopConditions(max_output_tokens=1, ignore_eos=True),
        reasons=frozenset({OUT_OF_BUDGET}),
    ),
    "context": End(
        stop=StopConditions(ignore_eos=True),
        prompt_tokens=CONTEXT_TOKENS - 20,
        reasons=frozenset({FinishReason.FINISH_REASON_CONTEXT_FULL}),
    ),
}


def config_for(end: End, *, token_ids: bool, seed: int = 11) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=1, seed=seed, logit_bias=end.bias),
        stop=end.stop,
        output=OutputOptions(token_ids=token_ids),
    )


def check_end(end: End, output: Output) -> None:
    assert output.finish_reason in end.reasons
    matched = output.finish_reason not in (
        OUT_OF_BUDGET,
        FinishReason.FINISH_REASON_CONTEXT_FULL,
    )
    assert output.HasField("stop_match") == matched
    if output.stop_match.text:
        assert output.stop_match.text in end.stop.stop_strings
    elif matched and output.token_ids:
        assert output.stop_match == StopMatch(token_id=output.token_ids[-1])


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("token_ids", [False, True], ids=["text", "text_and_ids"])
async def test_each_output_ends_once_and_usage_comes_once(
    tiny: RunningServer, name: str, num_outputs: int, token_ids: bool
) -> None:
    end = ENDS[name]
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=range(300, 300 + end.prompt_tokens))),
        config=config_for(end, token_ids=token_ids),
        num_outputs=num_outputs,
    )

    answer = await ask(tiny, request)

    for output in answer.outputs:
        check_end(end, output)
    assert answer.usage.prompt_tokens == end.prompt_tokens
    if token_ids:
        assert answer.usage.output_tokens == sum(len(o.token_ids) for o in answer.outputs)
    else:
        assert not any(output.token_ids for output in answer.outputs)


async def test_each_request_of_a_shared_stream_ends_once_and_with_its_own_usage(
    tiny: RunningServer,
) -> None:
    cases = [(end, num_outputs) for end in ENDS.values() for num_outputs in (1, 3)]
    frames = [
        MultiplexGenerateRequest(
            tag=tag,
            generate=GenerateRequest(
                prompt=Prompt(token_ids=TokenIds(ids=range(300, 300 + end.prompt_tokens))),
                config=config_for(end, token_ids=True),
                num_outputs=num_outputs,
            ),
        )
        for tag, (end, num_outputs) in enumerate(cases)
    ]
    told: list[list[StreamGenerateResponse]] = [[] for _ in cases]

    call = tiny.inference.MultiplexGenerate(iter(frames), timeout=LIMIT_S)
    async for response in call:
        for event in response.events:
            assert event.WhichOneof("event") == "generation"
            told[event.tag].append(event.generation)

    assert await call.code() is grpc.StatusCode.OK
    for (end, num_outputs), events in zip(cases, told, strict=True):
        answer = fold(events, num_outputs)
        for output in answer.outputs:
            check_end(end, output)
        assert answer.usage.prompt_tokens == end.prompt_tokens
        assert answer.usage.output_tokens == sum(len(o.token_ids) for o in answer.outputs)


@pytest.mark.parametrize("name", ["end_token", "stop_string", "stop_token"])
async def test_ends_that_were_meant_do_come_and_not_all_at_once(
    tiny: RunningServer, name: str
) -> None:
    """Guards the test above: its outputs end by what they are meant to, at different lengths."""
    answer: Answer = await ask(
        tiny,
        GenerateRequest(
            prompt=Prompt(token_ids=TokenIds(ids=PROMPT)),
            config=config_for(ENDS[name], token_ids=True),
            num_outputs=8,
        ),
    )

    reasons = {output.finish_reason for output in answer.outputs}
    assert reasons - {OUT_OF_BUDGET}
    assert len({len(output.token_ids) for output in answer.outputs}) > 2


@pytest.mark.parametrize("name", [name for name in ENDS if name != "context"])
async def test_turn_ends_once_with_reason_and_usage(tiny: RunningServer, name: str) -> None:
    end = ENDS[name]

    _, turn = await ask_in_session(tiny, "Go on.", config_for(end, token_ids=True))

    check_end(end, turn.output)
    assert turn.usage.output_tokens == len(turn.output.token_ids)


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_time_limit_ends_every_output_with_what_there_is(
    tiny: RunningServer, num_outputs: int
) -> None:
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=PROMPT)),
        config=GenerationConfig(
            stop=StopConditions(ignore_eos=True, time_limit=Duration(nanos=40_000_000)),
            output=OutputOptions(token_ids=True),
        ),
        num_outputs=num_outputs,
    )
    call = tiny.inference.StreamGenerate(request, timeout=LIMIT_S)

    streamed = fold([response async for response in call], num_outputs)
    unary = await tiny.inference.Generate(request, timeout=LIMIT_S)

    for answer in (streamed, unary):
        reasons = {output.finish_reason for output in answer.outputs}
        # A quick machine fills the context before.
        assert reasons <= {
            FinishReason.FINISH_REASON_TIME_LIMIT,
            FinishReason.FINISH_REASON_CONTEXT_FULL,
        }
        assert answer.usage.output_tokens == sum(len(o.token_ids) for o in answer.outputs)


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("num_read", [0, 1, 4])
async def test_cancelled_call_brings_nothing_more(
    tiny: RunningServer, num_outputs: int, num_read: int
) -> None:
    call = tiny.inference.StreamGenerate(
        GenerateRequest(
            prompt=Prompt(token_ids=TokenIds(ids=PROMPT)),
            config=GenerationConfig(stop=StopConditions(ignore_eos=True)),
            num_outputs=num_outputs,
        )
    )
    read = [await call.read() for _ in range(num_read)]

    call.cancel()

    assert await call.code() is grpc.StatusCode.CANCELLED
    assert [r.WhichOneof("event") for r in read] == (["started"] + ["delta"] * 3)[:num_read]


async def test_cancelled_turn_ends_once_and_keeps_what_was_told(tiny: RunningServer) -> None:
    session = await tiny.sessions.CreateSession(CreateSessionRequest())
    turn_name = f"{session.name}/turns/t1"
    events: list[TurnEvent] = []
    begun = asyncio.Event()

    async def read() -> None:
        config = GenerationConfig(
            stop=StopConditions(ignore_eos=True), output=OutputOptions(token_ids=True)
        )
        item = Item(message=ChatMessage(role=Role.ROLE_USER, text="Hello."))
        turn = StartTurn(turn_id="t1", items=[item], config=config)
        async for event in tiny.sessions.RunTurn(RunTurnRequest(session=session.name, turn=turn)):
            events.append(event)
            if event.HasField("delta"):
                begun.set()

    reading = asyncio.create_task(read())
    async with asyncio.timeout(LIMIT_S):
        await begun.wait()
        cancelled = await tiny.sessions.CancelTurn(CancelTurnRequest(name=turn_name))
        again = await tiny.sessions.CancelTurn(CancelTurnRequest(name=turn_name))
        await reading

    output = fold_turn(events)
    assert cancelled.state == Turn.STATE_COMPLETED
    assert again.output == cancelled.output
    assert cancelled.output == output
    assert output.finish_reason in (
        FinishReason.FINISH_REASON_CANCELLED,
        FinishReason.FINISH_REASON_CONTEXT_FULL,
    )
    assert events[-1].completed.usage.output_tokens == len(output.token_ids)


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_deadline_ends_the_call_with_its_status_alone(
    tiny: RunningServer, num_outputs: int
) -> None:
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=PROMPT)),
        config=GenerationConfig(stop=StopConditions(ignore_eos=True)),
        num_outputs=num_outputs,
    )
    call = tiny.inference.StreamGenerate(request, timeout=0.02)
    kinds: list[str | None] = []

    async def read() -> None:
        async for response in call:
            kinds.append(response.WhichOneof("event"))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read()

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "completed" not in kinds
    assert "output_finished" not in kinds


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_what_is_not_built_is_refused_by_name_before_anything_comes(
    tiny: RunningServer, num_outputs: int
) -> None:
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=PROMPT)),
        config=GenerationConfig(adapter="models/tiny/adapters/none"),
        num_outputs=num_outputs,
    )
    for call in (
        tiny.inference.Generate(request),
        tiny.inference.StreamGenerate(request).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert details_of(caught.value)["ErrorInfo"].reason == "UNSUPPORTED_FEATURE"
        assert "config.adapter" in (caught.value.details() or "")
