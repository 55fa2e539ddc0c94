"""Outputs with tools as one grammar, against what reads such outputs."""

import json
import random
from collections.abc import Sequence

import msgspec
import pytest

from antiphon_server.constraints.json_schema import PlanLimits
from antiphon_server.constraints.json_schema.plan import schema_rules
from antiphon_server.constraints.refusals import UnsupportedConstraintError
from antiphon_server.constraints.tool_calls import (
    CallChoice,
    CallWording,
    OfferedTool,
    ToolsConstraint,
    find_fault_in_calls,
    plan_calls,
)
from antiphon_server.text.output_channels import Channel, ChannelSpec, OutputChannels
from antiphon_server.text.tool_formats import HERMES, LLAMA, TOOL_FORMATS, ToolFormat
from support.grammar_texts import Texts

CITY = json.dumps(
    {
        "properties": {"city": {"enum": ["Bern", "<tool_call>;]"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
TOOLS = (
    OfferedTool(index=0, name="weather", schema=CITY),
    OfferedTool(index=1, name="now", schema=""),
)
WEATHER, NOW = ("weather", '{"city": "<tool_call>;]"}'), ("now", "{}")

Calls = Sequence[tuple[str, str]]


def rules_of(schema: str, prefix: str, max_blank: int) -> object:
    return schema_rules(schema, prefix=prefix, max_blank=max_blank, limits=PlanLimits())


def texts_of(
    tools: ToolFormat,
    choice: CallChoice = CallChoice.FREE,
    *,
    takes_several: bool = True,
    offered: Sequence[OfferedTool] = TOOLS,
) -> Texts:
    """Returns the outputs of a model in whose tokenizer the format's markers are plain text."""
    wording = tools.wording
    constraint = ToolsConstraint(
        tools=tuple(offered),
        choice=choice,
        takes_several=takes_several,
        wording=CallWording(
            opener=tools.opener if wording.opener else "",
            after_opener=wording.opener.removeprefix(tools.opener),
            heads=tuple(wording.head_of(tool.name) for tool in offered),
            tail=wording.tail,
            separator=wording.separator,
            closer=wording.closer,
            bare_opener=tools.bare_opener,
        ),
    )
    return Texts(plan_calls(msgspec.json.encode(constraint).decode(), rules_of))


def written(tools: ToolFormat, *calls: tuple[str, str]) -> str:
    wording = tools.wording
    texts = [wording.head_of(name) + arguments + wording.tail for name, arguments in calls]
    return wording.opener + wording.separator.join(texts) + wording.closer


def read(tools: ToolFormat, text: str) -> tuple[str, list[str], bool]:
    """Returns an output's answer, the arguments of its calls, and whether it reads as a whole."""
    channels = OutputChannels(ChannelSpec(tools=tools))
    parts = [*channels.push(text), *channels.finish()]
    answer = "".join(part.text for part in parts if part.channel is Channel.CONTENT)
    arguments: dict[int, str] = {}
    for part in parts:
        if part.channel is Channel.TOOL_CALL:
            arguments[part.call_index] = arguments.get(part.call_index, "") + part.text
    is_whole = channels.open_call_start is None and not channels.is_broken
    return answer, list(arguments.values()), is_whole


@pytest.mark.parametrize("tools", TOOL_FORMATS, ids=lambda tools: tools.name)
def test_calls_are_what_the_choice_says(tools: ToolFormat) -> None:
    one, two = written(tools, WEATHER), written(tools, WEATHER, NOW)
    said = "Fine, {thanks}."
    accepted = {
        CallChoice.FREE: (True, True, True),
        CallChoice.NONE: (True, False, False),
        CallChoice.REQUIRED: (False, True, True),
        CallChoice.ONE: (False, True, False),
    }

    for choice, expected in accepted.items():
        texts = texts_of(tools, choice)
        assert (texts.has(said), texts.has(one), texts.has(two)) == expected, choice
    alone = texts_of(tools, takes_several=False)
    assert (alone.has(one), alone.has(two)) == (True, False)


@pytest.mark.parametrize(
    ("schemas", "most"),
    [
        ([""], 1),
        (['{"properties":{},"additionalProperties":false}'], 1),
        (['{"type":"object","maxProperties":0}', ""], 2),
        (["", CITY], None),
        (['{"type":"object"}'], None),
        (['{"additionalProperties":false,"properties":{"a":{}}}'], None),
        (['{"additionalProperties":false,"patternProperties":{"a":{}}}'], None),
    ],
)
def test_there_are_no_more_calls_than_different_ones(schemas: list[str], most: int | None) -> None:
    offered = [
        OfferedTool(index=index, name=f"t{index}", schema=schema)
        for index, schema in enumerate(schemas)
    ]
    texts = texts_of(HERMES, CallChoice.REQUIRED, offered=offered)
    call = ("t0", '{"city": "Bern"}' if schemas[0] == CITY else "{}")

    allowed = [number for number in range(1, 5) if texts.has(written(HERMES, *[call] * number))]

    assert allowed == list(range(1, 5 if most is None else most + 1))


def test_more_calls_than_there_may_be_are_found() -> None:
    constraint = ToolsConstraint(
        tools=(OfferedTool(index=0, name="now", schema=""),),
        choice=CallChoice.REQUIRED,
        takes_several=True,
        wording=CallWording(opener="<", heads=("",), tail="", separator="", closer=""),
    )
    text = msgspec.json.encode(constraint).decode()

    def fault_in(*calls: tuple[str, str]) -> str:
        return find_fault_in_calls(text, json.dumps(calls), lambda *_: None)

    assert fault_in(NOW) == ""
    assert fault_in() == "it calls no tool"
    assert fault_in(NOW, NOW) == "it has 2 calls; the limit is 1"


@pytest.mark.parametrize("tools", TOOL_FORMATS, ids=lambda tools: tools.name)
def test_what_is_no_sound_call_is_not_said(tools: ToolFormat) -> None:
    texts = texts_of(tools)
    unsound = [
        written(tools, ("weather", "{}")),
        written(tools, ("weather", '{"city": "Rome"}')),
        written(tools, ("now", '{"a": 1}')),
        written(tools, ("other", "{}")),
        written(tools, NOW) + " and more",
        written(tools, NOW)[:-1],
    ]

    assert texts.has(written(tools, NOW))
    for text in unsound:
        assert not texts.has(text), text


@pytest.mark.parametrize("tools", TOOL_FORMATS, ids=lambda tools: tools.name)
def test_calls_stand_behind_a_text_where_they_are_known_by_a_marker(tools: ToolFormat) -> None:
    text = "I look.\n" + written(tools, NOW)

    if tools is LLAMA:
        # It is an answer then, as it reads.
        assert read(tools, text) == (text, [], True)
    else:
        assert texts_of(tools).has(text)


@pytest.mark.parametrize("choice", CallChoice)
@pytest.mark.parametrize("tools", TOOL_FORMATS, ids=lambda tools: tools.name)
def test_whatever_may_be_said_reads_as_a_whole(tools: ToolFormat, choice: CallChoice) -> None:
    texts, chooser = texts_of(tools, choice), random.Random(choice.value)

    for _ in range(12):
        drawn = texts.draw(chooser, max_bytes=300)
        if drawn is None:
            continue
        answer, calls, is_whole = read(tools, drawn)
        assert is_whole, drawn
        for arguments in map(json.loads, calls):
            assert arguments in ({}, {"city": "Bern"}, {"city": "<tool_call>;]"})
        if choice in (CallChoice.REQUIRED, CallChoice.ONE):
            assert calls, drawn
            assert not answer.strip(), drawn
        if choice is CallChoice.NONE:
            assert not calls, drawn


def test_a_schema_that_allows_no_object_is_refused_with_its_place() -> None:
    offered = [
        OfferedTool(index=0, name="now", schema=""),
        OfferedTool(index=3, name="odd", schema='{"type":"array"}'),
    ]

    with pytest.raises(UnsupportedConstraintError) as caught:
        texts_of(HERMES, offered=offered)

    assert caught.value.path == "[3].parameters_json_schema#/type"
    assert "'odd'" in caught.value.message
