"""Items of a conversation in the form that chat templates take."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn

from antiphon.v1.types_pb2 import ChatMessage, Item, Role, Tool, ToolCall, ToolResult

from antiphon_engine.api.errors import FieldViolation, InvalidRequest

Value = str | int | float | bool | None | Sequence["Value"] | dict[str, "Value"]
"""A JSON value."""

Message = dict[str, Value]
"""One message for a template."""

_HALF_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HALF: Final = re.compile("[\ud800-\udfff]")
_MAX_DIGITS: Final = 4300
"""Of a whole number; Python reads no more."""

_ROLES = {Role.ROLE_SYSTEM: "system", Role.ROLE_USER: "user", Role.ROLE_ASSISTANT: "assistant"}


def to_messages(items: Iterable[Item], *, instructions: str = "") -> list[Message]:
    """The items as messages; tool calls join the assistant's message in front of them.

    Raises:
        InvalidRequest: An item has no kind or role, or a call's arguments are no JSON object.
    """
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    tool_names: dict[str, str] = {}
    for index, item in enumerate(items):
        match item.WhichOneof("kind"):
            case "message":
                messages.append(_chat_message(item.message, f"items[{index}].message"))
            case "tool_call":
                tool_names[item.tool_call.call_id] = item.tool_call.tool_name
                call = _tool_call(item.tool_call, f"items[{index}].tool_call")
                _calls_of_last(messages).append(call)
            case "tool_result":
                messages.append(_tool_result(item.tool_result, tool_names))
            case _:
                raise InvalidRequest(FieldViolation(f"items[{index}]", "has no kind set"))
    return messages


def to_template_tools(tools: Sequence[Tool]) -> list[Message] | None:
    """The tools as templates take them; None where there are none.

    Raises:
        InvalidRequest: A schema is no JSON object.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _json_object(
                    tool.parameters_json_schema or '{"type": "object", "properties": {}}',
                    f"tools[{index}].parameters_json_schema",
                ),
            },
        }
        for index, tool in enumerate(tools)
    ] or None


def contents_of(messages: Sequence[Message]) -> list[str]:
    """Every string of the messages, or tools, that comes from outside."""
    contents: list[str] = []

    def collect(text: str) -> str:
        contents.append(text)
        return text

    map_contents(messages, collect)
    return contents


def map_contents(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    """The messages, or tools, with every string changed that comes from outside."""
    return [_map_message(message, change) for message in messages]


def _map_message(message: Message, change: Callable[[str], str]) -> Message:
    made: Message = {}
    for key, value in message.items():
        if key in ("role", "type"):
            made[key] = value
        elif isinstance(value, dict) and key == "function":
            made[key] = _map_message(value, change)
        elif isinstance(value, list) and key == "tool_calls":
            made[key] = [_map_message(call, change) for call in value if isinstance(call, dict)]
        else:
            made[key] = _map_texts(value, change)
    return made


def _map_texts(value: Value, change: Callable[[str], str]) -> Value:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_map_texts(part, change) for part in value]
    return value


def _chat_message(message: ChatMessage, path: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            FieldViolation(f"{path}.role", f"must be system, user or assistant, is {message.role}")
        )
    made: Message = {"role": role, "content": message.text}
    if message.reasoning:
        # Templates read the model's thinking under either name.
        made |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    return made


def _tool_call(call: ToolCall, path: str) -> Value:
    arguments = _json_object(call.arguments_json or "{}", f"{path}.arguments_json")
    function: Message = {"name": call.tool_name, "arguments": arguments}
    return {"type": "function", "id": call.call_id, "function": function}


def _calls_of_last(messages: list[Message]) -> list[Value]:
    """The list of calls that the last message holds; adds such a message where there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    return calls


def _tool_result(result: ToolResult, tool_names: dict[str, str]) -> Message:
    made: Message = {"role": "tool", "content": result.text, "tool_call_id": result.call_id}
    if result.call_id in tool_names:
        made["name"] = tool_names[result.call_id]
    return made


def _json_object(text: str, path: str) -> dict[str, Value]:
    try:
        value = json.loads(text, parse_int=_integer_of, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidRequest(FieldViolation(path, "nests too deeply")) from None
    except ValueError as error:
        raise InvalidRequest(FieldViolation(path, f"is not valid JSON: {error}")) from error
    if not isinstance(value, dict):
        raise InvalidRequest(FieldViolation(path, "must be one JSON object"))
    if _HALF_ESCAPE.search(text) and any(map(_HALF.search, _texts_of(value))):
        # No token could stand for it, nor could the text be sent to anyone.
        description = "has half of a surrogate pair in a text or name, which is no character"
        raise InvalidRequest(FieldViolation(path, description))
    return value


def _texts_of(value: Value) -> list[str]:
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    _map_texts(value, collect)
    return texts


def _integer_of(text: str) -> int:
    num_digits = len(text.lstrip("-"))
    if num_digits > _MAX_DIGITS:
        raise ValueError(f"a number has {num_digits} digits, and {_MAX_DIGITS} can be read")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
