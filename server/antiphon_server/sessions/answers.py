"""Answers as items of a conversation, also those that were generated in several turns."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.v1.types_pb2 import ROLE_ASSISTANT, ChatMessage, Item, ToolCall

Decode = Callable[[Sequence[int]], str]
"""Returns the text of an answer's ids."""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """What one turn said."""

    text: str
    reasoning: str
    token_ids: "array[int]"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it was continued by."""

    parts: tuple[AnswerPart, ...]
    calls: tuple[ToolCall, ...] = ()
    """Those it ended with."""

    @property
    def token_ids(self) -> "array[int]":
        """All of its ids."""
        whole = array("i")
        for part in self.parts:
            whole.extend(part.token_ids)
        return whole

    def to_items(self, decode: Decode) -> list[Item]:
        """Returns it as the conversation's next items, as if it had been said at once."""
        text = self.parts[0].text
        token_ids = self.parts[0].token_ids
        for part in self.parts[1:]:
            text = _joined(text, token_ids, part, decode)
            token_ids = token_ids + part.token_ids
        reasoning = "".join(part.reasoning for part in self.parts)
        said = Item(message=ChatMessage(role=ROLE_ASSISTANT, text=text, reasoning=reasoning))
        return [said, *(Item(tool_call=call) for call in self.calls)]


def _joined(text: str, token_ids: "array[int]", part: AnswerPart, decode: Decode) -> str:
    """Returns a text with its next part, whole where the cut was inside a character."""
    if decode(token_ids) != text:
        # It shows other tokens than a plain decode does, and so may the part.
        return text + part.text
    whole = decode(token_ids + part.token_ids)
    # What the part's ids say and it doesn't tell: it ended at a stop string.
    num_hidden = len(decode(part.token_ids)) - len(part.text)
    return whole[: len(whole) - num_hidden]
