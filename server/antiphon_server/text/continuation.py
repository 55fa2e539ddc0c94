"""Where, in a rendered conversation, a kept answer ends and what is new begins.

The kept answer isn't rendered: a made-up history with a stand-in for the answer is, and what the
template writes behind the stand-in is what belongs behind the answer.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from antiphon_server.text.content_marks import RenderedChat
from antiphon_server.text.control_tokens import ControlToken
from antiphon_server.text.json_values import JsonValue
from antiphon_server.text.template_messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpHistory:
    """Messages that end in a stand-in for the model's answer.

    Attributes:
        messages: The history.
        stand_in: The text that stands for the answer.
        has_calls: Whether the answer calls tools; the stand-in is in the last call too.
    """

    messages: Sequence[Message]
    stand_in: str
    has_calls: bool

    def rest_of(self, chat: RenderedChat, last_kept: ControlToken | None) -> RenderedChat | None:
        """What the chat has behind the answer; None where it doesn't show the answer as it is.

        Args:
            chat: The history and what is new, rendered.
            last_kept: The control token that the kept answer ends with; None: it doesn't end with
                one, and the template's end of an answer is a part of what is missing.
        """
        num_found = chat.text.count(self.stand_in)
        if not num_found or (num_found > 1 and not self.has_calls):
            return None
        rest = chat.after(chat.text.rindex(self.stand_in) + len(self.stand_in))
        for own in rest.own_tokens:
            if last_kept is not None and own.token.token_id == last_kept.token_id:
                return rest.after(own.end)
            if not self.has_calls:
                break  # another token is not the answer's end
        return None if self.has_calls else rest


def make_up_histories(new_messages: Sequence[Message], stand_in: str) -> Iterator[MadeUpHistory]:
    """Histories that what is new could follow, likeliest first: templates refuse some orders."""
    question: Message = {"role": "user", "content": "a"}
    answer: Message = {"role": "assistant", "content": stand_in}
    call_ids = _leading_results(new_messages)
    if call_ids:
        calls: list[JsonValue] = [_made_up_call(call_id, stand_in) for call_id in call_ids]
        calling: Message = {**answer, "tool_calls": calls}
        yield MadeUpHistory(messages=[question, calling], stand_in=stand_in, has_calls=True)
        bare: Message = {**calling, "content": ""}
        yield MadeUpHistory(messages=[question, bare], stand_in=stand_in, has_calls=True)
    yield MadeUpHistory(messages=[question, answer], stand_in=stand_in, has_calls=False)
    yield MadeUpHistory(messages=[answer], stand_in=stand_in, has_calls=False)


def choose_stand_in(texts: Collection[str]) -> str:
    """A word that occurs in none of the texts, and that no template trims or splits."""
    number = 0
    while any(f"keptanswer{number}x" in text for text in texts):
        number += 1
    return f"keptanswer{number}x"


def _leading_results(messages: Sequence[Message]) -> list[str]:
    call_ids: list[str] = []
    for message in messages:
        if message["role"] != "tool":
            break
        call_ids.append(str(message["tool_call_id"]))
    return call_ids


def _made_up_call(call_id: str, stand_in: str) -> JsonValue:
    function: Message = {"name": "a", "arguments": {"a": stand_in}}
    return {"type": "function", "id": call_id, "function": function}
