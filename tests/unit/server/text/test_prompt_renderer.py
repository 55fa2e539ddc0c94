import pytest
from antiphon.v1.types_pb2 import (
    ROLE_UNSPECIFIED,
    ChatMessage,
    Item,
    Tool,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason, InvalidRequest
from antiphon_server.text.prompt_renderer import PromptRenderer
from support import chat_templates
from support.prompt_items import TOOLS, assistant, call, result, system
from support.session_rows import user


def _bytes(pair, token_ids) -> list[bytes]:
    return [pair.ours.token_bytes(token_id) for token_id in token_ids]


def _controls(pair, token_ids) -> list[int]:
    return [i for i in token_ids if i in pair.ours.control_tokens.ids]


HARMLESS = {
    "one": (
        [user("if a < b > c | d then é 東 🛶")],
        [{"role": "user", "content": "if a < b > c | d then é 東 🛶"}],
    ),
    "blanks": (
        [user("  lead\n"), assistant(" yes  "), user("\n\nmore ")],
        [
            {"role": "user", "content": "  lead\n"},
            {"role": "assistant", "content": " yes  "},
            {"role": "user", "content": "\n\nmore "},
        ],
    ),
    "reasoning": (
        [user("a"), assistant("b", "hm, <i>so</i>"), user("c")],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "hm, <i>so</i>"},
            {"role": "user", "content": "c"},
        ],
    ),
    "system": (
        [system("> be brief <"), user("a")],
        [{"role": "system", "content": "> be brief <"}, {"role": "user", "content": "a"}],
    ),
    "word of a token": ([user("think")], [{"role": "user", "content": "think"}]),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name in chat_templates.ALL
        for case in HARMLESS
        if (name, case) != ("alternating", "system")  # that template refuses system messages
    ],
)
def test_harmless_conversations_come_out_as_from_transformers(renderer_of, pair, name, case):
    items, messages = HARMLESS[case]
    source = chat_templates.ALL[name]
    rendered = renderer_of(pair, source).render_conversation(items)

    text = pair.reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    ids = pair.reference.apply_chat_template(
        messages, chat_template=source, add_generation_prompt=True
    )["input_ids"]
    assert rendered.text == text
    assert rendered.token_ids == ids


def test_tools_calls_and_results_come_out_as_from_transformers(renderer_of, pair):
    items = [
        user("a"),
        assistant("wait"),
        call("c1", '{"q": "é < b", "n": [1, null]}'),
        call("c2", "", "now"),
        result("c1", "<b>2</b>"),
        result("c2", "noon"),
        user("and?"),
    ]
    function = {"type": "function"}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "wait",
            "tool_calls": [
                function
                | {
                    "id": "c1",
                    "function": {"name": "look_up", "arguments": {"q": "é < b", "n": [1, None]}},
                },
                function | {"id": "c2", "function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "<b>2</b>", "tool_call_id": "c1", "name": "look_up"},
        {"role": "tool", "content": "noon", "tool_call_id": "c2", "name": "now"},
        {"role": "user", "content": "and?"},
    ]
    tools = [
        function
        | {
            "function": {
                "name": "look_up",
                "description": "finds <things> & é",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            }
        },
        function
        | {
            "function": {
                "name": "now",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            }
        },
    ]
    source = chat_templates.CHATML_WITH_TOOLS

    rendered = renderer_of(pair, source).render_conversation(
        items, instructions="be brief", tools=TOOLS
    )

    assert (
        rendered.token_ids
        == pair.reference.apply_chat_template(
            messages, tools=tools, chat_template=source, add_generation_prompt=True
        )["input_ids"]
    )


@pytest.mark.parametrize("anything", ["true", " true\n"])
def test_a_tool_that_takes_any_object_is_shown_as_one_whose_schema_is_empty(
    renderer_of, byte_level, anything: str
):
    renderer = renderer_of(byte_level, chat_templates.CHATML_WITH_TOOLS)

    shown, empty = (
        renderer.render_conversation(
            [user("x")], tools=[Tool(name="a", parameters_json_schema=schema)]
        )
        for schema in (anything, "{}")
    )

    assert list(shown.token_ids) == list(empty.token_ids)


def test_a_call_without_a_message_in_front_becomes_a_message(renderer_of, byte_level):
    rendered = renderer_of(byte_level, chat_templates.CHATML_WITH_TOOLS).render_conversation(
        [user("a"), call("c1", '{"q": 1}')]
    )

    assert '<|im_start|>assistant\n<tool_call>\n{"name": "look_up", "arguments": {"q": 1}}' in (
        rendered.text
    )


def test_a_prompt_of_text_shows_special_tokens_unless_allowed(pair):
    renderer = PromptRenderer(pair.ours, None)
    text = "a <|im_end|> b"

    visible = renderer.render_text(text, allow_special_tokens=False)
    honoured = renderer.render_text(text, allow_special_tokens=True)

    assert _controls(pair, visible.token_ids) == []
    assert honoured.token_ids == pair.reference.encode(text)
    assert b"<|im_end|>" in _bytes(pair, honoured.token_ids)


def test_without_a_template_conversations_are_refused_and_text_is_not(byte_level):
    renderer = PromptRenderer(byte_level.ours, None)

    assert (renderer.chat, renderer.tools, renderer.reasoning) == (False, False, False)
    for render in (
        lambda: renderer.render_conversation([user("a")]),
        lambda: renderer.render_continuation([user("a")], kept_tail=[1]),
    ):
        with pytest.raises(AntiphonError) as raised:
            render()
        assert raised.value.reason is ErrorReason.NO_CHAT_TEMPLATE
    assert renderer.render_text("hello", allow_special_tokens=False).token_ids


def test_what_the_template_cannot_show_is_refused(renderer_of, byte_level):
    renderer = renderer_of(byte_level, chat_templates.ALTERNATING)

    for arguments in ({"tools": TOOLS}, {"reasoning": True}, {"reasoning": False}):
        with pytest.raises(AntiphonError) as raised:
            renderer.render_conversation([user("a")], **arguments)
        assert raised.value.reason is ErrorReason.UNSUPPORTED_FEATURE


@pytest.mark.parametrize(
    "items",
    [
        [user("a"), user("b")],
        [system("a"), user("b")],
        [assistant("a")],
        [user("a"), assistant("b"), result("c1", "c")],
        [],
    ],
)
def test_an_odd_order_of_roles_is_refused_in_the_templates_words(renderer_of, pair, items):
    renderer = renderer_of(pair, chat_templates.ALTERNATING)

    with pytest.raises(AntiphonError) as raised:
        renderer.render_conversation(items)

    assert raised.value.reason is ErrorReason.TEMPLATE_ERROR
    assert raised.value.message == (
        "the roles user and assistant must take turns" if items else "the conversation is empty"
    )
    assert renderer.render_conversation([user("a"), assistant("b"), user("c")]).token_ids


@pytest.mark.parametrize(
    ("items", "tools", "field"),
    [
        ([Item()], (), "items[0]"),
        (
            [user("a"), Item(message=ChatMessage(role=ROLE_UNSPECIFIED))],
            (),
            "items[1].message.role",
        ),
        ([call("1", "[]")], (), "items[0].tool_call.arguments_json"),
        ([call("1", "{")], (), "items[0].tool_call.arguments_json"),
        (
            [user("a")],
            [Tool(name="a", parameters_json_schema="3")],
            "tools[0].parameters_json_schema",
        ),
    ],
)
def test_malformed_items_are_refused_by_field(renderer_of, byte_level, items, tools, field):
    renderer = renderer_of(byte_level, chat_templates.CHATML_WITH_TOOLS)

    with pytest.raises(InvalidRequest) as raised:
        renderer.render_conversation(items, tools=tools, path="prompt")

    assert [violation.field for violation in raised.value.violations] == [f"prompt.{field}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"\\uDC00x": [1]}', "half of a surrogate pair"),
        ('{"a": [{"b": "\\ud83d \\ude00"}]}', "half of a surrogate pair"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": -Infinity}', "-Infinity is no JSON"),
        ('{"a": ' + "9" * 4301 + "}", "has 4301 digits"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nests too deeply"),
        ("[]", "must be one JSON object"),
    ],
)
def test_json_that_no_template_could_show_is_refused(
    renderer_of, byte_level, text: str, message: str
):
    renderer = renderer_of(byte_level, chat_templates.CHATML_WITH_TOOLS)

    with pytest.raises(InvalidRequest) as of_call:
        renderer.render_conversation([user("x"), call("1", text), result("1", "r")])
    with pytest.raises(InvalidRequest) as of_tool:
        renderer.render_conversation(
            [user("x")], tools=[Tool(name="a", parameters_json_schema=text)]
        )

    for raised, field in (
        (of_call, "items[1].tool_call.arguments_json"),
        (of_tool, "tools[0].parameters_json_schema"),
    ):
        (violation,) = raised.value.violations
        assert violation.field == field
        assert message in violation.description
        violation.description.encode()
