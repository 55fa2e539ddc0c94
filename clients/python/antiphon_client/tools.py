"""Tools of the caller's: how models are told of them, and how their calls are answered."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from antiphon.v1 import types_pb2

Handler: TypeAlias = Callable[[Mapping[str, object]], object]
"""Works out what a tool answers to a call's arguments: a text, or what JSON can hold."""
AsyncHandler: TypeAlias = Callable[[Mapping[str, object]], Awaitable[object]]
"""As Handler, on the event loop."""

MAX_TURNS: Final = 16
"""How many turns a model may take to one end, where nothing else is said."""


def tool(
    name: str, description: str = "", parameters: Mapping[str, object] | None = None
) -> types_pb2.Tool:
    """Returns a tool; `parameters` is the JSON Schema of its arguments, None: it takes none."""
    schema = "" if parameters is None else json.dumps(parameters)
    return types_pb2.Tool(name=name, description=description, parameters_json_schema=schema)


def arguments_of(call: types_pb2.ToolCall) -> dict[str, object]:
    """Returns a call's arguments."""
    arguments = json.loads(call.arguments_json or "{}")
    assert isinstance(arguments, dict), "the contract says so"
    return arguments


def tool_result(call: types_pb2.ToolCall, answer: object) -> types_pb2.Item:
    """Returns what a tool answered to a call; what is no text goes as JSON."""
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return types_pb2.Item(tool_result=types_pb2.ToolResult(call_id=call.call_id, text=text))


def config_behind_results(
    config: types_pb2.GenerationConfig | None,
) -> types_pb2.GenerationConfig | None:
    """Returns how turns behind calls' results are asked for: they may call, and need not.

    Otherwise a model that must call would never come to its answer.
    """
    if config is None or not config.HasField("tool_choice"):
        return config
    choice = config.tool_choice
    if not choice.tool_name and choice.mode != types_pb2.ToolChoice.MODE_REQUIRED:
        return config
    later = types_pb2.GenerationConfig()
    later.CopyFrom(config)
    later.tool_choice.mode = types_pb2.ToolChoice.MODE_AUTO
    return later


def answer_calls(
    calls: Sequence[types_pb2.ToolCall], handlers: Mapping[str, Handler]
) -> list[types_pb2.Item]:
    """Has calls answered by the handlers of their tools, one after the other.

    Raises:
        LookupError: a tool has no handler; none was called.
    """
    _check_handled(calls, handlers)
    return [tool_result(call, handlers[call.tool_name](arguments_of(call))) for call in calls]


async def answer_calls_async(
    calls: Sequence[types_pb2.ToolCall], handlers: Mapping[str, Handler | AsyncHandler]
) -> list[types_pb2.Item]:
    """As `answer_calls`, all at once; a handler that is no coroutine runs on the event loop.

    Where one fails the others are cancelled, and what it raised is raised.
    """
    _check_handled(calls, handlers)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_answer(call, handlers[call.tool_name])) for call in calls]
    return [task.result() for task in tasks]


async def _answer(call: types_pb2.ToolCall, handler: Handler | AsyncHandler) -> types_pb2.Item:
    answer = handler(arguments_of(call))
    return tool_result(call, await answer if inspect.isawaitable(answer) else answer)


def _check_handled(calls: Iterable[types_pb2.ToolCall], handlers: Mapping[str, object]) -> None:
    missing = sorted({call.tool_name for call in calls} - handlers.keys())
    if missing:
        raise LookupError(f"no handler for the tools that were called: {', '.join(missing)}")
