"""Patterns in tools' schemas hold in every call, or the tool is refused by name and place."""

import json

import grpc
import pytest
from antiphon.v1.types_pb2 import FinishReason, Tool, ToolChoice

from support.answers import LIMIT_S, ask
from support.calling_models import CLOCK, WEATHER, CallingModel, calls_of, config, request
from support.schema_oracle import as_in_ecma_262
from support.server import details_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHOICES = {
    "it": ToolChoice(tool_name="look_up"),
    "any": ToolChoice(mode=ToolChoice.MODE_REQUIRED),
    "free": None,
}
HELD = {
    "ahead": ("^(?=.*[0-9])[a-f0-9]{3,5}$", ["ab1"], "abc"),
    "not ahead": ("^(?!root$)[a-z]{3,6}$", ["tom"], "root"),
    "short": (r"^\d{2}:\w{1,3}\s?\/$", ["12:a /"], "1:a/"),
    "anywhere": ("[0-9]{2}", ["12", "ab12cd"], "ab1"),
    "dot": ("^x.z$", ["xyz"], "xz"),
    "word": (r"\bcat\b", ["cat", "a cat b"], "acat"),
    "other script": ("^[\u4e00-\u9fff]{2}$", ["\u6771\u4eac"], "ab"),
    "nothing or one": ("^(|q)$", ["", "q"], "r"),
}
REFUSED = {"look-behind": "(?<=x)y", "reference back": r"^(x|y)\1$"}


def look_up(pattern: str) -> list[Tool]:
    """Three tools, the second of which has a pattern."""
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": pattern}},
        "required": ["code"],
        "additionalProperties": False,
    }
    return [WEATHER, Tool(name="look_up", parameters_json_schema=json.dumps(schema)), CLOCK]


def call_with(code: str) -> tuple[str, str]:
    return "look_up", json.dumps({"code": code}, ensure_ascii=False)


@pytest.mark.parametrize("name", HELD)
async def test_a_pattern_holds_in_calls_and_what_it_allows_can_be_said(
    hermes: CallingModel, name: str
) -> None:
    pattern, valid, invalid = HELD[name]
    for code in valid:
        for choice in CHOICES.values():
            hermes.wants(hermes.write([call_with(code)]))
            answer = await ask(hermes.server, request(config(choice), tools=look_up(pattern)))
            assert calls_of(answer.output) == [call_with(code)]

    hermes.wants(hermes.write([call_with(invalid)]))
    asked = request(config(CHOICES["it"], max_tokens=90), tools=look_up(pattern))
    output = (await ask(hermes.server, asked)).output

    # Where anything may stand around what is looked for, it may take all the tokens.
    ends = {FinishReason.FINISH_REASON_TOOL_CALLS, FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS}
    assert output.finish_reason in ends
    matching = as_in_ecma_262(pattern)
    assert all(matching.search(json.loads(said)["code"]) for _, said in calls_of(output))


async def test_a_pattern_that_is_heavy_to_search_for_holds_up_no_call(
    hermes: CallingModel,
) -> None:
    """The last look at a call would go back more often than there is time for."""
    call = call_with("a" * 32 + " b1")
    hermes.wants(hermes.write([call]))
    asked = request(config(CHOICES["it"], max_tokens=90), tools=look_up("([a-z]+)+[0-9]"))

    output = (await ask(hermes.server, asked)).output

    assert calls_of(output) == [call]
    assert output.finish_reason == FinishReason.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("construct", REFUSED)
async def test_a_pattern_that_no_grammar_has_is_refused_by_tool_place_and_construct(
    hermes: CallingModel, construct: str, choice: str
) -> None:
    asked = request(config(CHOICES[choice]), tools=look_up(REFUSED[construct]))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await hermes.server.inference.Generate(asked, timeout=LIMIT_S)

    (violation,) = details_of(caught.value)["BadRequest"].field_violations
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violation.field == "prompt.conversation.tools[1].parameters_json_schema"
    assert violation.description.startswith("#/properties/code/pattern: tool 'look_up': ")
    assert construct.partition(" ")[0] in violation.description


async def test_a_tools_schema_that_is_no_schema_is_refused_by_its_field(
    hermes: CallingModel,
) -> None:
    places = {"{": "line 1, column 2", "3": "#", '{"type":"obj"}': "#/type"}
    for schema, place in places.items():
        asked = request(config(), tools=[WEATHER, Tool(name="x", parameters_json_schema=schema)])

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hermes.server.inference.Generate(asked, timeout=LIMIT_S)

        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation.field == "prompt.conversation.tools[1].parameters_json_schema"
        assert violation.description.startswith(f"{place}: tool 'x': ")
