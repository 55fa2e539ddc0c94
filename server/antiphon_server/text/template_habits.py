"""What a chat template shows of its model's habits: how it writes calls, and what it thinks in.

The template is asked, not its text: made-up conversations are rendered and looked at.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.text.chat_template import ChatTemplate, TemplateInput
from antiphon_server.text.json_values import JsonValue
from antiphon_server.text.output_channels import ReasoningMarkers
from antiphon_server.text.template_messages import Message
from antiphon_server.text.tool_formats import TOOL_FORMATS, ToolFormat, Wording

_NAMES: Final = ("madeupone", "madeuptwo")
_ARGUMENT: Final = "madeupvalue"
_CALL_IDS: Final = ("abcdefgh1", "abcdefgh2")
_ARGUMENTS: Final = r"\{[^{}]*" + _ARGUMENT + r"[^{}]*\}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateHabits:
    """What is known of a model by its template."""

    tools: ToolFormat | None = None
    """None: it shows calls in no form that is known, or none at all."""
    takes_several_calls: bool = False
    """Whether one answer may hold more than one call."""
    reasoning: ReasoningMarkers | None = None
    """None: it doesn't think, as far as the template shows."""
    thinks_by_default: bool = False
    """Whether the model opens its thinking itself unless it is told not to think."""


def read_habits(template: ChatTemplate, named_tokens: Mapping[str, str]) -> TemplateHabits:
    """Returns what the template shows of its model."""
    probe = _Probe(template, named_tokens)
    one, two = probe.calls(_NAMES[:1]), probe.calls(_NAMES)
    tools = _format_of(one, two) if template.takes_tools else None
    markers = ReasoningMarkers()
    thinks = markers.closer in template.text or "reasoning_content" in template.text
    if not thinks:
        return TemplateHabits(tools=tools, takes_several_calls=bool(two))
    plain, off = probe.question(None), probe.question(False)
    return TemplateHabits(
        tools=tools,
        takes_several_calls=bool(two),
        reasoning=markers,
        thinks_by_default=(
            template.takes_reasoning
            and not _ends_with_marker(plain, markers)
            and off.rstrip().endswith(markers.closer)
        ),
    )


def _ends_with_marker(text: str, markers: ReasoningMarkers) -> bool:
    return text.rstrip().endswith((markers.opener, markers.closer))


class _Probe:
    """Renders made-up conversations; one that the template refuses gives no text."""

    def __init__(self, template: ChatTemplate, named_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._named_tokens = named_tokens

    def question(self, reasoning: bool | None) -> str:
        """Returns a prompt for an answer."""
        return self._render([{"role": "user", "content": "a"}], reasoning=reasoning)

    def calls(self, names: Sequence[str]) -> str:
        """Returns a conversation whose last answer calls tools of these names."""
        calls: list[JsonValue] = [
            {
                "type": "function",
                "id": call_id,
                "function": {"name": name, "arguments": {"a": _ARGUMENT}},
            }
            for name, call_id in zip(names, _CALL_IDS, strict=False)
        ]
        question: Message = {"role": "user", "content": "a"}
        calling: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        results: list[Message] = [
            {"role": "tool", "content": "b", "tool_call_id": call_id, "name": name}
            for name, call_id in zip(names, _CALL_IDS, strict=False)
        ]
        return self._render([question, calling, *results], tools=names)

    def _render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[str] = (),
        reasoning: bool | None = None,
    ) -> str:
        shown: list[Message] = [
            {
                "type": "function",
                "function": {
                    "name": f"{name}tool",
                    "description": "c",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
            for name in tools
        ]
        given = TemplateInput(
            messages=messages,
            tools=shown or None,
            reasoning=reasoning,
            named_tokens=self._named_tokens,
        )
        try:
            return self._template.render(given)
        except AntiphonError:
            return ""


def _format_of(one: str, two: str) -> ToolFormat | None:
    """Returns the format that rendered calls are in, worded as they are; None: none that is known.

    Args:
        one: A conversation with one call.
        two: One with two calls in one answer; empty: the template takes no such answer.
    """
    for known in TOOL_FORMATS:
        wording = _wording_of(known, one, two)
        if wording is not None:
            return replace(known, wording=wording)
    return None


def _wording_of(known: ToolFormat, one: str, two: str) -> Wording | None:
    opener = re.escape(known.wording.opener.removesuffix(" [").removesuffix("["))
    list_start = r"(?:\s*\[)?" if known.closer else ""
    pattern = re.compile(
        rf"(?P<opener>{opener}{list_start})(?P<head>{known.head.pattern})"
        rf"{_ARGUMENTS}(?P<tail>{known.tail.pattern})"
    )
    found = next((each for each in pattern.finditer(one) if each["name"] == _NAMES[0]), None)
    if found is None:
        return None
    default = known.wording
    head, tail = found["head"].replace(_NAMES[0], "{name}"), found["tail"]
    if not found["opener"]:
        head = head.lstrip()
    if any(call_id in head + tail for call_id in _CALL_IDS):
        # Ids are the server's: a model need not make them up.
        head, tail = default.head, default.tail
    return Wording(
        opener=found["opener"],
        head=head,
        tail=tail,
        separator=_separator_of(known, two, tail) or default.separator,
        closer=default.closer,
    )


def _separator_of(known: ToolFormat, two: str, tail: str) -> str:
    """Returns what stands between two calls, if that is how the family separates them."""
    start, end = two.find(_NAMES[0]), two.rfind(_NAMES[1])
    between = two[start:end]
    found = re.search(
        rf"{_ARGUMENTS}{known.tail.pattern}(?P<separator>\s*{re.escape(known.separator)})", between
    )
    return found["separator"] if found else ""
