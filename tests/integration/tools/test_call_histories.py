"""What the turns behind calls stand on: the ids that were generated, or what anyone would send."""

import pytest
from antiphon.v1.session_pb2 import HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER, StartTurn
from antiphon.v1.types_pb2 import Item, Output, OutputOptions, ToolCall, ToolChoice, ToolResult

from support.answers import ask, fold_turn
from support.calling_models import (
    BERN,
    TOOLS,
    CallingModel,
    calls_of,
    config,
    request,
    results_for,
)
from support.refusals import refusal_of, refusal_of_both
from support.session_rows import user
from support.turn_runs import TurnRun, events_of_turn, new_session, read_run, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOLD = OutputOptions(prompt_token_ids=True, token_ids=True)
CHOICES = {"free": None, "must": ToolChoice(mode=ToolChoice.MODE_REQUIRED)}
BLOCK_TOKENS = 16


async def called_and_answered(
    model: CallingModel, policy: int, choice: str, *, spelled: bool
) -> tuple[Output, TurnRun, TurnRun]:
    """Runs a turn that calls and one behind the results; returns the calls and both turns."""
    session = await new_session(model.server, history_policy=policy, tools=TOOLS)
    model.wants(model.write(model.calls), spelled=spelled)
    start = StartTurn(items=[user("Well?")], config=config(CHOICES[choice], output=TOLD))
    events = await events_of_turn(model.server, session, start)
    called = fold_turn(events)
    assert calls_of(called) == list(model.calls)
    model.wants("It is warm.", spelled=spelled)
    answered = await run_turn(model.server, session, list(results_for(called)), config(output=TOLD))
    assert answered.text == "It is warm."
    return called, read_run(events), answered


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("spelled", [False, True], ids=["words", "bytes"])
async def test_kept_calls_stay_the_ids_that_they_were(
    model: CallingModel, choice: str, spelled: bool
) -> None:
    _, first, second = await called_and_answered(
        model, HISTORY_POLICY_KEEP_TOKENS, choice, spelled=spelled
    )

    assert second.prompt_ids[: len(first.context)] == first.context
    # Of another session with the same conversation there may be more.
    cached = second.usage.cached_prompt_tokens
    assert cached >= (len(first.context) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("spelled", [False, True], ids=["words", "bytes"])
async def test_rerendered_calls_are_what_a_caller_without_a_session_would_send(
    model: CallingModel, spelled: bool
) -> None:
    called, _, second = await called_and_answered(
        model, HISTORY_POLICY_RERENDER, "free", spelled=spelled
    )
    calls = [Item(tool_call=call) for call in called.tool_calls]
    items = [user("Well?"), *calls, *results_for(called)]

    alone = await ask(model.server, request(config(output=TOLD), items=items))

    assert list(alone.prompt_token_ids) == second.prompt_ids
    assert list(alone.output.token_ids) == second.output_ids


def call_of(call_id: str) -> Item:
    call = ToolCall(call_id=call_id, tool_name="weather", arguments_json=BERN[0][1])
    return Item(tool_call=call)


def result_of(call_id: str) -> Item:
    return Item(tool_result=ToolResult(call_id=call_id, text="21 °C"))


INVALID, MISSING = "INVALID_FIELD", "TOOL_RESULTS_MISSING"
ODD_ORDERS = {
    "result_without_call": ([user("a"), result_of("c1")], INVALID),
    "result_first": ([result_of("c1"), user("a")], INVALID),
    "result_of_another_call": ([user("a"), call_of("c1"), result_of("c2")], INVALID),
    "two_results": ([user("a"), call_of("c1"), result_of("c1"), result_of("c1")], INVALID),
    "two_calls_of_an_id": ([user("a"), call_of("c1"), call_of("c1"), result_of("c1")], INVALID),
    "call_without_result": ([user("a"), call_of("c1")], MISSING),
    "question_before_result": ([user("a"), call_of("c1"), user("b"), result_of("c1")], MISSING),
}


@pytest.mark.parametrize("order", ODD_ORDERS)
async def test_odd_orders_of_calls_and_results_are_refused_and_leave_the_session_as_it_was(
    hermes: CallingModel, order: str
) -> None:
    items, reason = ODD_ORDERS[order]
    server, told = hermes.server, config(output=TOLD)
    session, fresh = [await new_session(server, tools=TOOLS) for _ in range(2)]
    hermes.wants("It is warm.")

    alone = await refusal_of_both(server, request(told, items=items))
    start = StartTurn(turn_id="odd", items=items, config=told)
    in_session = await refusal_of(lambda: events_of_turn(server, session, start))
    legal, expected = [
        await run_turn(server, name, [user("What now?")], told) for name in (session, fresh)
    ]

    assert (alone.reason, in_session.reason) == (reason, reason)
    assert "items[" in alone.message or "at the end" in alone.message
    assert (legal.prompt_ids, legal.output_ids) == (expected.prompt_ids, expected.output_ids)
