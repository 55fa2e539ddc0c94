"""Whether there are calls and which, in each family's words and by every method."""

import json

import pytest
from antiphon.v1.types_pb2 import FinishReason, Tool, ToolChoice

from support.answers import ask
from support.calling_models import (
    BARE_CLOCK,
    BERN,
    CLOCK,
    TOOLS,
    WEATHER,
    CallingModel,
    ask_every_way,
    calls_of,
    config,
    request,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLED = FinishReason.FINISH_REASON_TOOL_CALLS
STOP = FinishReason.FINISH_REASON_STOP
REQUIRED = ToolChoice(mode=ToolChoice.MODE_REQUIRED)
NONE = ToolChoice(mode=ToolChoice.MODE_NONE)
MAX_BLANKS = 16
"""Far fewer than a model may want."""
MAX_CALL_TOKENS = 24
"""Of one call without arguments, with its markers and the end."""


@pytest.mark.parametrize("spelled", [False, True], ids=["words", "bytes"])
async def test_calls_are_read_behind_a_text(model: CallingModel, spelled: bool) -> None:
    said = "" if model.tools.bare_opener else "Let me see"
    model.wants(said + model.write(model.calls), spelled=spelled)

    output = await ask_every_way(model.server, request(config()))

    assert calls_of(output) == list(model.calls)
    assert output.text == said
    assert output.finish_reason == CALLED


async def test_a_model_that_may_call_need_not(model: CallingModel) -> None:
    model.wants("It is fine. { <tool [TOOL")

    output = await ask_every_way(model.server, request(config()))

    assert (output.text, output.finish_reason) == ("It is fine. { <tool [TOOL", STOP)


async def test_a_model_that_must_call_does_although_it_wants_to_talk(model: CallingModel) -> None:
    model.wants("It is fine, I should say.")

    answer = await ask(model.server, request(config(REQUIRED, max_tokens=600), tools=[CLOCK]))
    output = answer.output

    assert output.text == ""
    assert {name for name, _ in calls_of(output)} == {"clock_now"}
    assert output.finish_reason == CALLED


async def test_a_tool_that_must_be_called_is_although_another_is_wanted(
    model: CallingModel,
) -> None:
    model.wants(model.write(BERN))
    choice = ToolChoice(tool_name="clock_now")

    answer = await ask(model.server, request(config(choice), tools=TOOLS))
    output = answer.output

    ((name, arguments),) = calls_of(output)
    assert (name, json.loads(arguments)) == ("clock_now", {})
    assert output.finish_reason == CALLED


async def test_exactly_one_call_where_the_tool_is_named(model: CallingModel) -> None:
    model.wants(model.write([*BERN, *BERN]))
    choice = ToolChoice(tool_name="weather")

    answer = await ask(model.server, request(config(choice)))
    output = answer.output

    assert calls_of(output) == list(BERN)


async def test_no_call_where_none_may_be(model: CallingModel) -> None:
    model.wants(model.write(BERN))

    answer = await ask(model.server, request(config(NONE, max_tokens=60)))
    output = answer.output

    assert not output.tool_calls
    assert not output.text.startswith(model.tools.bare_opener or model.tools.opener)
    assert output.finish_reason in (STOP, FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS)


async def test_arguments_keep_to_their_schema_whatever_the_model_wants(
    model: CallingModel,
) -> None:
    model.wants(model.write([("weather", '{"town": 5, "days": 4}')]))

    answer = await ask(model.server, request(config(REQUIRED, max_tokens=400)))
    output = answer.output

    for name, arguments in calls_of(output):
        value = json.loads(arguments)
        assert name in ("weather", "clock_now")
        assert set(value) <= ({"city", "days"} if name == "weather" else set())
        assert value.get("days", 1) in (1, 2, 3)


WITHOUT_PARAMETERS = pytest.mark.parametrize(
    ("tool", "choice"),
    [
        (CLOCK, REQUIRED),
        (CLOCK, ToolChoice(tool_name="clock_now")),
        (BARE_CLOCK, ToolChoice(tool_name="clock_now")),
    ],
    ids=["any", "it", "left out"],
)


@WITHOUT_PARAMETERS
async def test_a_tool_without_parameters_is_called_with_an_empty_object(
    model: CallingModel, tool: Tool, choice: ToolChoice
) -> None:
    # A model that likes blanks too much.
    model.wants(model.write([("clock_now", "{" + " " * 200)]))

    answer = await ask(model.server, request(config(choice, max_tokens=64), tools=[tool]))
    output = answer.output

    ((name, arguments),) = calls_of(output)
    assert (name, json.loads(arguments)) == ("clock_now", {})
    assert output.finish_reason == CALLED
    # With the end token, and a blank wherever one may be.
    least = model.encode(model.write([("clock_now", "{}")]))
    assert answer.usage.output_tokens <= len(least) + MAX_BLANKS + 1


@WITHOUT_PARAMETERS
async def test_a_call_without_parameters_takes_few_tokens(
    model: CallingModel, tool: Tool, choice: ToolChoice
) -> None:
    model.wants(model.write([("clock_now", "{}")]))

    answer = await ask(model.server, request(config(choice, max_tokens=64), tools=[tool]))

    assert calls_of(answer.output) == [("clock_now", "{}")]
    assert answer.output.finish_reason == CALLED
    assert answer.usage.output_tokens <= MAX_CALL_TOKENS


async def test_a_model_that_calls_on_and_on_calls_a_tool_without_parameters_once(
    model: CallingModel,
) -> None:
    model.wants(model.write([("clock_now", "{}")] * 9))

    answer = await ask(model.server, request(config(REQUIRED, max_tokens=64), tools=[CLOCK]))

    assert calls_of(answer.output) == [("clock_now", "{}")]
    assert answer.output.finish_reason == CALLED


@pytest.mark.parametrize("mode", [ToolChoice.MODE_AUTO, ToolChoice.MODE_REQUIRED])
async def test_one_call_where_several_are_not_allowed(model: CallingModel, mode: int) -> None:
    model.wants(model.write([*BERN, *BERN]))
    choice = ToolChoice(mode=mode, parallel_calls=False)

    output = await ask_every_way(model.server, request(config(choice)))

    assert calls_of(output) == list(BERN)
    assert output.finish_reason == CALLED


async def test_several_calls_where_they_are_asked_for(model: CallingModel) -> None:
    model.wants(model.write(model.calls))
    choice = ToolChoice(mode=ToolChoice.MODE_REQUIRED, parallel_calls=True)

    output = await ask_every_way(model.server, request(config(choice)))

    assert calls_of(output) == list(model.calls)


async def test_a_tool_that_is_not_on_offer_is_not_called(model: CallingModel) -> None:
    model.wants(model.write([("clock_now", "{}")]))

    answer = await ask(model.server, request(config(REQUIRED, max_tokens=300), tools=[WEATHER]))
    output = answer.output

    assert "clock_now" not in {name for name, _ in calls_of(output)}
