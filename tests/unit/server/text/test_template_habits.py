import pytest

from antiphon_server.text.chat_template import ChatTemplate
from antiphon_server.text.output_channels import Channel, ChannelSpec, OutputChannels
from antiphon_server.text.template_habits import TemplateHabits, read_habits
from support import chat_templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def habits_of(source: str) -> TemplateHabits:
    return read_habits(ChatTemplate({"default": source}), TOKENS)


@pytest.mark.parametrize(
    ("source", "name", "call", "several"),
    [
        (
            chat_templates.CHATML_WITH_TOOLS,
            "hermes",
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            True,
        ),
        (
            chat_templates.ONE_BARE_CALL,
            "llama",
            '{"name": "now", "parameters": {}}',
            False,
        ),
        (
            chat_templates.CALLS_IN_A_LIST,
            "mistral_list",
            '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
            True,
        ),
        (
            chat_templates.CALLS_BY_NAME,
            "mistral_named",
            "[TOOL_CALLS]now[ARGS]{}",
            True,
        ),
    ],
)
def test_calls_are_worded_as_the_template_words_them(source, name, call, several):
    habits = habits_of(source)

    assert habits.tools is not None
    assert habits.tools.name == name
    assert habits.takes_several_calls is several
    wording = habits.tools.wording
    assert wording.opener + wording.head_of("now") + "{}" + wording.tail + wording.closer == call
    parts = OutputChannels(ChannelSpec(tools=habits.tools)).push(call)
    assert [part.text for part in parts if part.channel is Channel.TOOL_CALL] == ["{}", ""]


def test_two_calls_are_separated_as_the_template_does():
    wording = habits_of(chat_templates.CHATML_WITH_TOOLS).tools.wording

    assert wording.separator == "\n<tool_call>"


@pytest.mark.parametrize(
    "source",
    [
        chat_templates.CALLS_AS_NOBODY_DOES,
        chat_templates.THINKING,
        chat_templates.ALTERNATING,
    ],
)
def test_calls_in_no_known_form_are_none(source):
    assert habits_of(source).tools is None


@pytest.mark.parametrize(
    ("source", "thinks", "by_default"),
    [
        (chat_templates.THINKING, True, True),
        (chat_templates.THINKING_WITH_TOOLS, True, True),
        (chat_templates.ALWAYS_THINKING, True, False),
        (chat_templates.EMPTY_THOUGHT_WHEN_LAST, True, False),
        (chat_templates.CHATML_WITH_TOOLS, False, False),
        (chat_templates.HEADERS, False, False),
    ],
)
def test_thinking_is_seen_in_the_template(source, thinks, by_default):
    habits = habits_of(source)

    assert (habits.reasoning is not None) is thinks
    assert habits.thinks_by_default is by_default
