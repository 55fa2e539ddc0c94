"""Conversations and prompts: everything that can be told without rendering them."""

from collections.abc import Sequence

from antiphon.v1.types_pb2 import ChatMessage, Item, Prompt, Role, Tool

from antiphon_server.capabilities import BUILT, unsupported_feature
from antiphon_server.validation_fields import Violations, join_path

_ROLES = frozenset({Role.ROLE_SYSTEM, Role.ROLE_USER, Role.ROLE_ASSISTANT})


def check_items(items: Sequence[Item], path: str) -> None:
    """Checks the elements of a conversation.

    Raises:
        InvalidRequest: an item has no kind or an unknown one, or a message's role is not known.
        AntiphonError: UNSUPPORTED_FEATURE for tool calls, their results, and reasoning.
    """
    violations = Violations()
    for index, item in enumerate(items):
        _check_item(item, f"{path}[{index}]", violations)
    violations.raise_if_any()


def check_tools(tools: Sequence[Tool], path: str) -> None:
    """Checks that no tools are offered, since calls to them would not be understood.

    Raises:
        AntiphonError: UNSUPPORTED_FEATURE.
    """
    if tools and not BUILT.tools:
        raise unsupported_feature("tools", path)


def check_prompt(prompt: Prompt, path: str) -> None:
    """Checks a prompt's form. Token ids are looked at when it is rendered.

    Raises:
        InvalidRequest: it has no kind or an unknown one, or is empty, or an item is at fault.
        AntiphonError: UNSUPPORTED_FEATURE, as for `check_items` and `check_tools`.
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
    check_tools(prompt.conversation.tools, join_path(path, "conversation.tools"))
    check_items(prompt.conversation.items, join_path(path, "conversation.items"))


def _check_item(item: Item, path: str, violations: Violations) -> None:
    kind = item.WhichOneof("kind")
    if kind is None:
        violations.add(path, "one of message, tool_call and tool_result must be set")
    elif kind == "message":
        _check_message(item.message, f"{path}.message", violations)
    elif not BUILT.tools:
        raise unsupported_feature("tools", f"{path}.{kind}")


def _check_message(message: ChatMessage, path: str, violations: Violations) -> None:
    if message.role not in _ROLES:
        violations.add(f"{path}.role", f"must be a known role, is {message.role}")
    if message.reasoning and message.role != Role.ROLE_ASSISTANT:
        violations.add(f"{path}.reasoning", "goes with ROLE_ASSISTANT only")
    elif message.reasoning and not BUILT.reasoning:
        raise unsupported_feature("reasoning", f"{path}.reasoning")
