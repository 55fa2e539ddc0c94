"""Short ways to write the contract's requests, prompts, items and places in a history."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from antiphon.v1 import inference_pb2, session_pb2, types_pb2
from google.protobuf import empty_pb2

Says: TypeAlias = str | types_pb2.Item | Sequence[types_pb2.Item]
"""What a caller adds to a conversation: text stands for a message of the user's."""


def user(text: str) -> types_pb2.Item:
    """Returns a message of the user's."""
    return _message(types_pb2.ROLE_USER, text)


def assistant(text: str) -> types_pb2.Item:
    """Returns a message of the model's."""
    return _message(types_pb2.ROLE_ASSISTANT, text)


def system(text: str) -> types_pb2.Item:
    """Returns instructions."""
    return _message(types_pb2.ROLE_SYSTEM, text)


def items_of(says: Says) -> list[types_pb2.Item]:
    """Returns the items that `says` stands for."""
    if isinstance(says, str):
        return [user(says)]
    if isinstance(says, types_pb2.Item):
        return [says]
    return list(says)


def conversation(says: Says, tools: Iterable[types_pb2.Tool] = ()) -> types_pb2.Prompt:
    """Returns a prompt that the model's chat template renders, with the tools on offer."""
    return types_pb2.Prompt(conversation=types_pb2.Conversation(items=items_of(says), tools=tools))


def after(turn_name: str) -> session_pb2.HistoryPoint:
    """Returns the place in a history behind `sessions/{session}/turns/{turn}`."""
    return session_pb2.HistoryPoint(turn=turn_name)


def beginning() -> session_pb2.HistoryPoint:
    """Returns the place in a history before its first turn."""
    return session_pb2.HistoryPoint(start=empty_pb2.Empty())


def before(turn: session_pb2.Turn) -> session_pb2.HistoryPoint:
    """Returns the place in a history that `turn` came behind."""
    return after(turn.parent_turn) if turn.parent_turn else beginning()


def prompt_of(prompt: Says | types_pb2.Prompt) -> types_pb2.Prompt:
    """Returns the prompt; what is none stands for a conversation."""
    return prompt if isinstance(prompt, types_pb2.Prompt) else conversation(prompt)


def generate_request(
    prompt: Says | types_pb2.Prompt,
    config: types_pb2.GenerationConfig | None = None,
    *,
    model: str = "",
    num_outputs: int | None = None,
) -> inference_pb2.GenerateRequest:
    """Returns a request to generate; a prompt that is no Prompt stands for a conversation."""
    return inference_pb2.GenerateRequest(
        model=model, prompt=prompt_of(prompt), config=config, num_outputs=num_outputs
    )


def raw_text(text: str, *, allow_special_tokens: bool = False) -> types_pb2.Prompt:
    """Returns a prompt to continue as it stands."""
    return types_pb2.Prompt(text=text, allow_special_tokens=allow_special_tokens)


def raw_tokens(token_ids: Iterable[int]) -> types_pb2.Prompt:
    """Returns a prompt of token ids, used as they are."""
    return types_pb2.Prompt(token_ids=types_pb2.TokenIds(ids=token_ids))


def _message(role: "types_pb2.Role.ValueType", text: str) -> types_pb2.Item:
    return types_pb2.Item(message=types_pb2.ChatMessage(role=role, text=text))
