"""Thinking: a channel of its own, with a switch and a budget; forms hold behind it."""

import grpc
import pytest
from antiphon.v1.session_pb2 import HISTORY_POLICY_RERENDER, StartTurn
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    FinishReason,
    OutputOptions,
    ReasoningConfig,
    StopConditions,
)

from support.answers import LIMIT_S, ask, fold_turn
from support.calling_models import (
    BERN,
    CallingModel,
    ask_every_way,
    calls_of,
    config,
    request,
    results_for,
)
from support.server import details_of
from support.session_rows import user
from support.turn_runs import events_of_turn, new_session

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOP = FinishReason.FINISH_REASON_STOP
CALLED = FinishReason.FINISH_REASON_TOOL_CALLS
OUT_OF_TOKENS = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
YES_OR_NO = Constraint(choice=Choice(options=["yes", "no"]))
ON, OFF = ReasoningConfig(enabled=True), ReasoningConfig(enabled=False)


def asked(**values: object) -> object:
    return request(config(**values), tools=())


@pytest.mark.parametrize("constraint", [YES_OR_NO, None], ids=["held", "free"])
async def test_thinking_is_a_channel_of_its_own(
    thinking: CallingModel, constraint: Constraint | None
) -> None:
    # Where something holds for what is behind it, the prompt opens the thinking.
    opener = "" if constraint else "<think>\n"
    thought = thinking.encode(f"{opener}no, or yes\n</think>")
    thinking.wants(f"{opener}no, or yes\n</think>\n\nyes")

    answer = await ask(thinking.server, asked(constraint=constraint, reasoning=ON))

    assert (answer.text, answer.output.reasoning.strip()) == ("yes", "no, or yes")
    assert answer.output.finish_reason == STOP
    assert answer.usage.reasoning_tokens == len(thought)
    assert answer.usage.output_tokens > len(thought)


async def test_a_constraint_holds_where_the_model_does_not_think(thinking: CallingModel) -> None:
    thinking.wants("maybe</think>yes")

    answer = await ask(thinking.server, asked(constraint=YES_OR_NO, reasoning=OFF))

    assert answer.text in ("yes", "no")
    assert (answer.output.reasoning, answer.usage.reasoning_tokens) == ("", 0)


async def test_a_constraint_begins_behind_a_marker_of_many_tokens(thinking: CallingModel) -> None:
    tokenizer = thinking.server.model.tokenizer
    ids = tokenizer.encode("so no</think>yes", add_special_tokens=False, allow_special_tokens=False)
    thinking.wants_ids([*ids, *tokenizer.end_ids])

    answer = await ask(thinking.server, asked(constraint=YES_OR_NO, reasoning=ON))

    assert (answer.text, answer.output.reasoning) == ("yes", "so no")


async def test_a_constraint_holds_though_the_model_wants_to_talk(thinking: CallingModel) -> None:
    thinking.wants("yes or no?</think>\n\nI would say no.")

    answer = await ask(thinking.server, asked(constraint=YES_OR_NO, reasoning=ON))

    assert answer.text in ("yes", "no")
    assert answer.output.reasoning == "yes or no?"


async def test_an_output_may_run_out_of_tokens_inside_its_thinking(thinking: CallingModel) -> None:
    thinking.wants("yes and no " * 20, goes_on=True)

    answer = await ask(thinking.server, asked(constraint=YES_OR_NO, reasoning=ON, max_tokens=9))

    assert (answer.text, answer.output.finish_reason) == ("", OUT_OF_TOKENS)
    assert answer.output.reasoning.startswith("yes and no")
    assert answer.usage.reasoning_tokens == answer.usage.output_tokens == 9


FOLLOWED = {
    "no thinking": (OFF, "yes", 60, "yes"),
    "thinking": (ON, "no, or yes\n</think>yes", 60, "yes"),
    "a marker of many tokens": (ON, "so no</think>yes", 60, "yes"),
    "a budget": (ReasoningConfig(enabled=True, max_tokens=2), "no,no", 60, "no"),
    "nothing but thinking": (ON, "yes and no " * 20, 9, ""),
}
"""How it thinks, what it wants to say, its tokens at most, and what the answer then is, if sure.

Behind a budget the marker stands in place of the comma. No blanks follow markers, which would be
neither reasoning nor the grammar's.
"""


@pytest.mark.parametrize("name", FOLLOWED)
async def test_a_grammar_follows_the_answers_tokens_and_no_others(
    thinking: CallingModel, name: str
) -> None:
    reasoning, wanted, max_tokens, sure = FOLLOWED[name]
    tokenizer = thinking.server.model.tokenizer
    spelled = name == "a marker of many tokens"
    ids = tokenizer.encode(wanted, add_special_tokens=False, allow_special_tokens=not spelled)
    thinking.wants_ids([*ids, *tokenizer.end_ids])
    before = await thinking.server.engine.stats()

    given = asked(constraint=YES_OR_NO, reasoning=reasoning, max_tokens=max_tokens)
    answer = await thinking.server.inference.Generate(given, timeout=LIMIT_S)

    after = await thinking.server.engine.stats()
    (output,) = answer.outputs
    assert output.text in ({sure} if sure else {"", "yes", "no"})
    num_matched = after.num_matched_tokens_total - before.num_matched_tokens_total
    # The end is no token of the grammar's.
    num_ends = int(output.finish_reason == STOP)
    assert num_matched + num_ends == answer.usage.output_tokens - answer.usage.reasoning_tokens
    assert num_matched or not output.text


@pytest.mark.parametrize("constraint", [YES_OR_NO, None], ids=["held", "free"])
async def test_thinking_ends_with_its_budget(
    thinking: CallingModel, constraint: Constraint | None
) -> None:
    thinking.wants("on and on and on and on and on and on and on", goes_on=True)
    budget = ReasoningConfig(enabled=True, max_tokens=6)

    answer = await ask(
        thinking.server, asked(constraint=constraint, reasoning=budget, max_tokens=30)
    )

    thought = thinking.encode(answer.output.reasoning)
    assert len(thought) == 6
    assert answer.usage.reasoning_tokens == 7, "with the marker"
    assert answer.text in ("yes", "no") if constraint else answer.text


async def test_stop_strings_are_not_looked_for_in_the_thinking(thinking: CallingModel) -> None:
    thinking.wants("<think>\nhalt, no\n</think>\n\nwe halt here")
    given = asked(reasoning=ON)
    given.config.stop.CopyFrom(StopConditions(max_output_tokens=60, stop_strings=["halt"]))

    output = await ask_every_way(thinking.server, given)

    assert (output.text, output.reasoning.strip()) == ("we ", "halt, no")
    assert output.finish_reason == FinishReason.FINISH_REASON_STOP_SEQUENCE


async def test_calls_come_behind_the_thinking(thinking: CallingModel) -> None:
    thought = f"shall I {thinking.write(BERN)}?"
    thinking.wants(f"{thought}</think>\n\nYes.\n{thinking.write(BERN)}")

    output = await ask_every_way(thinking.server, request(config(reasoning=ON)))

    assert output.reasoning == thought
    assert output.text == "Yes."
    assert calls_of(output) == list(BERN)
    assert output.finish_reason == CALLED


@pytest.mark.parametrize("policy", [0, HISTORY_POLICY_RERENDER], ids=["keeps", "renders"])
async def test_the_next_turn_stands_on_the_thinking_as_the_history_has_it(
    thinking: CallingModel, policy: int
) -> None:
    server = thinking.server
    session = await new_session(server, history_policy=policy)
    shown = OutputOptions(prompt_token_ids=True)
    thinking.wants("<think>\nI muse\n</think>\n\nIt is.")
    first = StartTurn(items=[user("Is it?")], config=config(reasoning=ON))
    told = fold_turn(await events_of_turn(server, session, first))
    thinking.wants("<think>\nYes, again\n</think>\n\nStill.")
    second = StartTurn(items=[user("Still?")], config=config(reasoning=ON, output=shown))
    events = await events_of_turn(server, session, second)

    prompt = [token_id for event in events for token_id in event.prompt_part.token_ids]
    text = server.model.tokenizer.decode(prompt, skip_special_tokens=False)
    assert (told.reasoning.strip(), told.text) == ("I muse", "It is.")
    assert fold_turn(events).reasoning.strip() == "Yes, again"
    assert text.count("It is.") == 1
    assert text.count("I muse") == (0 if policy == HISTORY_POLICY_RERENDER else 1)


@pytest.mark.parametrize("policy", [0, HISTORY_POLICY_RERENDER], ids=["keeps", "renders"])
async def test_a_turn_goes_on_behind_results_of_calls_that_were_thought_of(
    thinking: CallingModel, policy: int
) -> None:
    server = thinking.server
    session = await new_session(
        server, history_policy=policy, tools=request(config()).prompt.conversation.tools
    )
    thinking.wants(f"Bern?</think>\n\n{thinking.write(BERN)}")
    first = StartTurn(items=[user("How is it?")], config=config(reasoning=ON))
    called = fold_turn(await events_of_turn(server, session, first))
    thinking.wants("Warm.</think>\n\nIt is 21 °C.")
    second = StartTurn(items=list(results_for(called)), config=config(reasoning=ON))
    answered = fold_turn(await events_of_turn(server, session, second))

    assert (called.reasoning, calls_of(called)) == ("Bern?", list(BERN))
    assert (answered.reasoning, answered.text) == ("Warm.", "It is 21 °C.")
    assert answered.finish_reason == STOP


async def test_thinking_that_nobody_can_switch_or_bound_is_refused(model: CallingModel) -> None:
    for field, reasoning in (
        ("enabled", OFF),
        ("enabled", ON),
        ("max_tokens", ReasoningConfig(max_tokens=5)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await model.server.inference.Generate(asked(reasoning=reasoning), timeout=LIMIT_S)
        info = details_of(caught.value)["ErrorInfo"]
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert (info.reason, info.metadata["capability"]) == ("UNSUPPORTED_FEATURE", "reasoning")
        assert info.metadata["field"] == f"config.reasoning.{field}"
