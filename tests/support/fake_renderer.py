"""A renderer whose prompts are easy to foretell."""

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.v1.types_pb2 import Item, Tool

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.text.template_habits import TemplateHabits

BEGIN, TURN, ANSWER, NEXT = 1, 2, 3, 4
REFUSED = "refuse me"


@dataclass(frozen=True, slots=True)
class FakeRendered:
    text: str
    token_ids: list[int]


class FakeRenderer:
    """Renders a conversation as BEGIN, the instructions, TURN and each item's text, ANSWER.

    A continuation begins with NEXT in place of BEGIN and the instructions. Characters are ids.
    """

    chat = True
    tools = False
    reasoning = False

    habits = TemplateHabits()

    def render_conversation(
        self,
        items: Sequence[Item],
        *,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        reasoning: bool | None = None,
    ) -> FakeRendered:
        return self._render([BEGIN, *ids_of(instructions)], items)

    def render_continuation(
        self,
        new_items: Sequence[Item],
        *,
        kept_tail: Sequence[int],
        instructions: str = "",
        tools: Sequence[Tool] = (),
        reasoning: bool | None = None,
    ) -> FakeRendered:
        return self._render([NEXT], new_items)

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        """Never what was told, so that answers in parts are joined as they were told."""
        return "\0"

    def _render(self, start: list[int], items: Sequence[Item]) -> FakeRendered:
        token_ids = list(start)
        for item in items:
            if item.message.text == REFUSED:
                raise AntiphonError(ErrorReason.TEMPLATE_ERROR, "the template refuses it")
            token_ids += [TURN, *ids_of(item.message.text)]
        return FakeRendered("", [*token_ids, ANSWER])


def ids_of(text: str) -> list[int]:
    """Returns the ids of a text in a prompt, one for each character."""
    return [5 + ord(character) % 250 for character in text]
