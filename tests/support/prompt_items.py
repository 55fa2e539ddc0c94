"""Items and tools that prompts are rendered of."""

from antiphon.v1.types_pb2 import (
    ROLE_ASSISTANT,
    ROLE_SYSTEM,
    ChatMessage,
    Item,
    Tool,
    ToolCall,
    ToolResult,
)

TOOLS = (
    Tool(
        name="look_up",
        description="finds <things> & é",
        parameters_json_schema='{"type": "object", "properties": {"q": {"type": "string"}}}',
    ),
    Tool(name="now"),
)


def system(text: str) -> Item:
    return Item(message=ChatMessage(role=ROLE_SYSTEM, text=text))


def assistant(text: str, reasoning: str = "") -> Item:
    return Item(message=ChatMessage(role=ROLE_ASSISTANT, text=text, reasoning=reasoning))


def call(call_id: str, arguments: str = "{}", name: str = "look_up") -> Item:
    return Item(tool_call=ToolCall(call_id=call_id, tool_name=name, arguments_json=arguments))


def result(call_id: str, text: str) -> Item:
    return Item(tool_result=ToolResult(call_id=call_id, text=text))
