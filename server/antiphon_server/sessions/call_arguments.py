"""Arguments of calls that come with a history, and that no prompt is made of yet."""

from collections.abc import Sequence

from antiphon.v1.types_pb2 import Item

from antiphon_server.offload import Offload
from antiphon_server.text.json_values import parse_object


async def check_call_arguments(items: Sequence[Item], path: str, offload: Offload) -> None:
    """Checks what rendering would find later, when the items are kept and every turn would fail.

    Raises:
        InvalidRequest: a call's arguments are no JSON object.
        AntiphonError: OVERLOADED.
    """
    if any(item.tool_call.arguments_json for item in items):
        await offload.run(_check, items, path)


def _check(items: Sequence[Item], path: str) -> None:
    for index, item in enumerate(items):
        if arguments := item.tool_call.arguments_json:
            parse_object(arguments, f"{path}[{index}].tool_call.arguments_json")
