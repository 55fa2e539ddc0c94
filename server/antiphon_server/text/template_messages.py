"""Items of a conversation in the form that chat templates take."""

from collections.abc import Callable, Iterable, Sequence

from antiphon.v1.types_pb2 import ChatMessage, Item, Role, Tool, ToolCall, ToolResult

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.text.json_values import JsonValue, change_texts, parse_object

Message = dict[str, JsonValue]
"""One message for a template."""

_ROLES = {Role.ROLE_SYSTEM: "system", Role.ROLE_USER: "user", Role.ROLE_ASSISTANT: "assistant"}


def to_messages(
    items: Iterable[Item], *, instructions: str = "", path: str = "items"
) -> list[Message]:
    """The items as messages; tool calls join the assistant's message in front of them.

    Args:
        items: What was said.
        instructions: What stands before all of it.
        path: The field that the items are in, for refusals.

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
                messages.append(_chat_message(item.message, f"{path}[{index}].message"))
            case "tool_call":
                tool_names[item.tool_call.call_id] = item.tool_call.tool_name
                call = _tool_call(item.tool_call, f"{path}[{index}].tool_call")
                _calls_of_last(messages).append(call)
            case "tool_result":
                messages.append(_tool_result(item.tool_result, tool_names))
            case _:
                raise InvalidRequest(FieldViolation(f"{path}[{index}]", "has no kind set"))
    return messages


def to_template_tools(tools: Sequence[Tool], path: str) -> list[Message] | None:
    """The tools, which are in the field `path`, as templates take them; None where there are none.

    Raises:
        InvalidRequest: A schema is no JSON object.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": parse_object(
                    _schema_text(tool), f"{path}[{index}].parameters_json_schema"
                ),
            },
        }
        for index, tool in enumerate(tools)
    ] or None


def _schema_text(tool: Tool) -> str:
    """Returns a tool's schema as an object, which is what templates write."""
    if not tool.parameters_json_schema:
        return '{"type": "object", "properties": {}}'
    # The two say the same of arguments.
    is_true = tool.parameters_json_schema.strip() == "true"
    return "{}" if is_true else tool.parameters_json_schema


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
            made[key] = change_texts(value, change)
    return made


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


def _tool_call(call: ToolCall, path: str) -> JsonValue:
    arguments = parse_object(call.arguments_json or "{}", f"{path}.arguments_json")
    function: Message = {"name": call.tool_name, "arguments": arguments}
    return {"type": "function", "id": call.call_id, "function": function}


def _calls_of_last(messages: list[Message]) -> list[JsonValue]:
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
