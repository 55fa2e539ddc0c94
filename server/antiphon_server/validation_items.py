"""Conversations and prompts: everything that can be told without rendering them."""

from collections.abc import Sequence
from typing import Final

from antiphon.v1.types_pb2 import ChatMessage, Item, Prompt, Role

from antiphon_server.capabilities import Capabilities, unsupported_feature
from antiphon_server.served_model import ServedModel
from antiphon_server.tool_results import NO_CALLS, calls_open_behind, results_missing
from antiphon_server.validation_fields import Violations, join_path
from antiphon_server.validation_tools import check_tools

MAX_CALL_ID_CHARACTERS: Final = 64
_ROLES = frozenset({Role.ROLE_SYSTEM, Role.ROLE_USER, Role.ROLE_ASSISTANT})


def check_items(items: Sequence[Item], path: str) -> None:
    """Checks the elements of a conversation.

    Raises:
        InvalidRequest: an item has no kind or an unknown one, or a message's role is not known, or
            a call lacks its id or name.
    """
    violations = Violations()
    for index, item in enumerate(items):
        _check_item(item, f"{path}[{index}]", violations)
    violations.raise_if_any()


def check_items_offered(items: Sequence[Item], capabilities: Capabilities, path: str) -> None:
    """Checks that the model can be shown what the items say.

    Raises:
        AntiphonError: UNSUPPORTED_FEATURE for tool calls, their results, and reasoning.
    """
    for index, item in enumerate(items):
        kind = item.WhichOneof("kind")
        if kind in ("tool_call", "tool_result") and not capabilities.tools:
            raise unsupported_feature("tools", f"{path}[{index}].{kind}")
        thought = item.message.role == Role.ROLE_ASSISTANT and item.message.reasoning
        if thought and not capabilities.reasoning:
            raise unsupported_feature("reasoning", f"{path}[{index}].message.reasoning")


def check_prompt(prompt: Prompt, path: str, *, model: ServedModel) -> None:
    """Checks a prompt's form. Token ids are looked at when it is rendered.

    Raises:
        InvalidRequest: it has no kind or an unknown one, or is empty, or an item is at fault.
        AntiphonError: UNSUPPORTED_FEATURE, as for `check_items_offered` and `check_tools`;
            TOOL_RESULTS_MISSING.
    """
    violations = Violations()
    kind = prompt.WhichOneof("kind")
    if kind is None:
        violations.add(path, "one of text, token_ids and conversation must be set")
    if kind == "token_ids" and not prompt.token_ids.ids:
        violations.add(join_path(path, "token_ids.ids"), "must have one token id at least")
    if kind == "conversation" and not prompt.conversation.items:
        violations.add(join_path(path, "conversation.items"), "must have one item at least")
    if kind in ("token_ids", "conversation") and prompt.allow_special_tokens:
        violations.add(join_path(path, "allow_special_tokens"), "goes with text only")
    violations.raise_if_any()
    items, items_path = prompt.conversation.items, join_path(path, "conversation.items")
    check_tools(prompt.conversation.tools, join_path(path, "conversation.tools"), model=model)
    check_items_offered(items, model.capabilities, items_path)
    check_items(items, items_path)
    if open_calls := calls_open_behind(NO_CALLS, items, items_path):
        raise results_missing(open_calls, "at the end of the conversation")


def _check_item(item: Item, path: str, violations: Violations) -> None:
    kind = item.WhichOneof("kind")
    if kind is None:
        violations.add(path, "one of message, tool_call and tool_result must be set")
    elif kind == "message":
        _check_message(item.message, f"{path}.message", violations)
    elif kind == "tool_call":
        check_call_id(item.tool_call.call_id, f"{path}.tool_call.call_id", violations)
        if not item.tool_call.tool_name:
            violations.add(f"{path}.tool_call.tool_name", "must not be empty")
    else:
        check_call_id(item.tool_result.call_id, f"{path}.tool_result.call_id", violations)


def check_call_id(call_id: str, path: str, violations: Violations) -> None:
    """Adds what is wrong with the form of a tool call's id."""
    if not 1 <= len(call_id) <= MAX_CALL_ID_CHARACTERS:
        violations.add(
            path, f"must have 1 to {MAX_CALL_ID_CHARACTERS} characters, has {len(call_id)}"
        )


def _check_message(message: ChatMessage, path: str, violations: Violations) -> None:
    if message.role not in _ROLES:
        violations.add(f"{path}.role", f"must be a known role, is {message.role}")
    if message.reasoning and message.role != Role.ROLE_ASSISTANT:
        violations.add(f"{path}.reasoning", "goes with ROLE_ASSISTANT only")
