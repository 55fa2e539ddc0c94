"""Round trips of calls and results, in sessions and without, in each family's words."""

import json
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_RERENDER,
    AppendItems,
    AppendTurnRequest,
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    StartTurn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    Item,
    Output,
    OutputOptions,
    ToolCall,
    ToolChoice,
    ToolResult,
)

from support.answers import LIMIT_S, fold_turn
from support.calling_models import (
    BERN,
    TOOLS,
    CallingModel,
    ask_every_way,
    calls_of,
    config,
    request,
    results_for,
)
from support.server import RunningServer, details_of
from support.session_rows import user
from support.turn_runs import events_of_turn, new_session

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLED = FinishReason.FINISH_REASON_TOOL_CALLS
STOP = FinishReason.FINISH_REASON_STOP
SHOWN = OutputOptions(prompt_token_ids=True)


async def conversed(server: RunningServer, session: str, start: StartTurn) -> list[TurnEvent]:
    """Runs a turn on a stream of its own."""

    async def frames() -> AsyncIterator[ConverseRequest]:
        yield ConverseRequest(frame_id="open", open=OpenSession(name=session))
        yield ConverseRequest(frame_id="go", generate=start)

    call = server.sessions.Converse(frames(), timeout=LIMIT_S)
    return [frame.turn_event async for frame in call if frame.HasField("turn_event")]


def prompt_in(server: RunningServer, events: Sequence[TurnEvent]) -> str:
    ids = [token_id for event in events for token_id in event.prompt_part.token_ids]
    return server.model.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("run", [events_of_turn, conversed], ids=["RunTurn", "Converse"])
@pytest.mark.parametrize("policy", [0, HISTORY_POLICY_RERENDER], ids=["keeps", "renders"])
async def test_a_turn_goes_on_behind_the_results(
    model: CallingModel, policy: int, run: object
) -> None:
    server = model.server
    session = await new_session(server, history_policy=policy, tools=TOOLS)
    model.wants(model.write(model.calls))
    called = fold_turn(
        await run(server, session, StartTurn(items=[user("Well?")], config=config()))
    )
    model.wants("It is warm.")
    results = list(results_for(called))
    second = StartTurn(items=results, config=config(output=SHOWN))
    events = await run(server, session, second)
    answered, prompt = fold_turn(events), prompt_in(server, events)

    assert calls_of(called) == list(model.calls)
    assert called.finish_reason == CALLED
    assert (answered.text, answered.finish_reason) == ("It is warm.", STOP)
    assert prompt.count("21 °C") == len(results)
    for name, _ in model.calls:
        assert prompt.count(model.tools.wording.head_of(name).strip()) == 1


async def test_a_conversation_with_calls_and_results_goes_on(model: CallingModel) -> None:
    model.wants("It is warm.")
    call = Item(tool_call=ToolCall(call_id="abcdefgh1", tool_name="weather"))
    call.tool_call.arguments_json = BERN[0][1]
    answered = [user("Well?"), call, *results_for(Output(tool_calls=[call.tool_call]))]

    output = await ask_every_way(model.server, request(config(), items=answered))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await model.server.inference.Generate(
            request(config(), items=answered[:2]), timeout=LIMIT_S
        )

    assert output.text == "It is warm."
    info = details_of(caught.value)["ErrorInfo"]
    assert (info.reason, info.metadata["call_ids"]) == ("TOOL_RESULTS_MISSING", "abcdefgh1")


async def test_ids_of_calls_are_each_their_own(hermes: CallingModel) -> None:
    server = hermes.server
    session = await new_session(server, tools=TOOLS)
    hermes.wants(hermes.write(hermes.calls))
    first = fold_turn(await events_of_turn(server, session, _turn("t1", user("Well?"))))
    again = fold_turn(await events_of_turn(server, session, _turn("t1", user("Well?"))))
    second = fold_turn(await events_of_turn(server, session, _turn("t2", *results_for(first))))
    asked = request(config())
    stateless = (await server.inference.Generate(asked, timeout=LIMIT_S)).outputs[0]

    ids = [call.call_id for each in (first, second, stateless) for call in each.tool_calls]
    assert len(set(ids)) == len(ids) == 3 * len(hermes.calls)
    assert again == first
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


async def test_a_call_that_is_cut_by_a_stop_token_is_none(hermes: CallingModel) -> None:
    written = hermes.write([("weather", json.dumps({"city": "Bern ~"}))])
    hermes.wants(written)
    given = config()
    given.stop.stop_token_ids.extend(hermes.encode("~"))

    output = await ask_every_way(hermes.server, request(given))

    assert output.finish_reason == FinishReason.FINISH_REASON_STOP_SEQUENCE
    assert not output.tool_calls


async def test_several_outputs_have_calls_of_their_own(hermes: CallingModel) -> None:
    hermes.wants(hermes.write(BERN))
    asked = request(config())
    asked.num_outputs = 2

    answer = await hermes.server.inference.Generate(asked, timeout=LIMIT_S)

    assert [calls_of(output) for output in answer.outputs] == [list(BERN), list(BERN)]
    assert len({output.tool_calls[0].call_id for output in answer.outputs}) == 2


async def test_a_turn_lifts_what_the_session_would_have_called(hermes: CallingModel) -> None:
    server = hermes.server
    defaults = GenerationConfig(tool_choice=ToolChoice(tool_name="clock_now"))
    session = await new_session(server, tools=TOOLS, defaults=defaults)
    hermes.wants("I talk.")
    own = config(ToolChoice(mode=ToolChoice.MODE_NONE))
    talked = await events_of_turn(server, session, StartTurn(items=[user("Well?")], config=own))
    hermes.wants(hermes.write([("clock_now", "{}")]))
    called = await events_of_turn(
        server, session, StartTurn(items=[user("Well?")], config=config(max_tokens=60))
    )

    assert (fold_turn(talked).text, fold_turn(talked).finish_reason) == ("I talk.", STOP)
    assert calls_of(fold_turn(called)) == [("clock_now", "{}")]


def _turn(turn_id: str, *items: Item) -> StartTurn:
    return StartTurn(turn_id=turn_id, items=items, config=config())


@pytest.mark.parametrize(
    "arguments", ["{", "[]", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1e999}', "1" * 5000]
)
async def test_arguments_that_no_prompt_could_hold_are_not_kept(
    hermes: CallingModel, arguments: str
) -> None:
    server = hermes.server
    call = ToolCall(call_id="c", tool_name="weather", arguments_json=arguments)
    items = [user("hi"), Item(tool_call=call), Item(tool_result=ToolResult(call_id="c"))]
    session = await new_session(server, tools=TOOLS)

    with pytest.raises(grpc.aio.AioRpcError) as created:
        await server.sessions.CreateSession(CreateSessionRequest(items=items), timeout=LIMIT_S)
    append = AppendTurnRequest(session=session, append=AppendItems(items=items))
    with pytest.raises(grpc.aio.AioRpcError) as appended:
        await server.sessions.AppendTurn(append, timeout=LIMIT_S)

    for refusal, path in ((created, "items"), (appended, "append.items")):
        (violation,) = details_of(refusal.value)["BadRequest"].field_violations
        assert violation.field == f"{path}[1].tool_call.arguments_json"
    hermes.wants("Hello.")
    output = fold_turn(await events_of_turn(server, session, StartTurn(items=[user("hi")])))
    assert output.text == "Hello."
