"""How the families of models write tool calls, as the text of their outputs."""

import re
from dataclasses import dataclass
from typing import Final

_NAME = r"(?P<name>[A-Za-z0-9_-]+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How one template writes calls to the letter: what a model was taught to write."""

    opener: str
    """Before the first call."""
    head: str
    """Before the arguments, with `{name}` for the tool's name."""
    tail: str
    """Behind the arguments."""
    separator: str
    """Between two calls."""
    closer: str = ""
    """Behind the last call."""

    def head_of(self, tool_name: str) -> str:
        """Returns what stands before the arguments of a call."""
        return self.head.replace("{name}", tool_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """What calls of a family look like. Blanks may stand between the parts.

    A call is a head with the tool's name, the arguments as one JSON object, and a tail.
    """

    name: str
    opener: str
    """Begins the first call, wherever in the answer."""
    bare_opener: str = ""
    """Begins the first call too, where it begins the answer; it is a part of the head."""
    lead: str = ""
    """Belongs to the opener where it stands before it, and not to the answer."""
    head: re.Pattern[str]
    """From behind the opener or separator up to the arguments."""
    tail: re.Pattern[str]
    """From behind the arguments to the end of the call."""
    separator: str
    """Between two calls."""
    closer: str = ""
    """Behind the last call."""
    markers: tuple[str, ...]
    """Texts that may be single tokens: they count even where such tokens don't show."""
    wording: Wording


def _json_head(arguments_key: str) -> re.Pattern[str]:
    return re.compile(
        rf'\s*\[?\s*\{{\s*"name"\s*:\s*"{_NAME}"\s*,\s*"{arguments_key}"\s*:\s*(?=\{{)'
    )


HERMES: Final = ToolFormat(
    name="hermes",
    opener="<tool_call>",
    lead="\n",
    head=_json_head("arguments"),
    tail=re.compile(r"\s*\}\s*</tool_call>"),
    separator="<tool_call>",
    markers=("<tool_call>", "</tool_call>"),
    wording=Wording(
        opener="<tool_call>",
        head='\n{"name": "{name}", "arguments": ',
        tail="}\n</tool_call>",
        separator="\n<tool_call>",
    ),
)
"""Qwen 2.5, Qwen 3, Hermes and those trained alike."""

LLAMA: Final = ToolFormat(
    name="llama",
    opener="<|python_tag|>",
    bare_opener='{"name": "',
    head=_json_head("parameters"),
    tail=re.compile(r"\s*\}"),
    separator=";",
    markers=("<|python_tag|>",),
    wording=Wording(
        opener="",
        head='{"name": "{name}", "parameters": ',
        tail="}",
        separator="; ",
    ),
)
"""Llama 3.1 and later."""

MISTRAL_LIST: Final = ToolFormat(
    name="mistral_list",
    opener="[TOOL_CALLS]",
    head=_json_head("arguments"),
    tail=re.compile(r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?\s*\}'),
    separator=",",
    closer="]",
    markers=("[TOOL_CALLS]",),
    wording=Wording(
        opener="[TOOL_CALLS] [",
        head='{"name": "{name}", "arguments": ',
        tail="}",
        separator=", ",
        closer="]",
    ),
)
"""Mistral's models up to 2024: one list of all calls."""

MISTRAL_NAMED: Final = ToolFormat(
    name="mistral_named",
    opener="[TOOL_CALLS]",
    head=re.compile(rf"\s*{_NAME}(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\])?\s*(?=\{{)"),
    tail=re.compile(""),
    separator="[TOOL_CALLS]",
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    wording=Wording(
        opener="[TOOL_CALLS]",
        head="{name}[ARGS]",
        tail="",
        separator="[TOOL_CALLS]",
    ),
)
"""Mistral's later models: a name and its arguments for each call."""

TOOL_FORMATS: Final = (HERMES, MISTRAL_LIST, MISTRAL_NAMED, LLAMA)
"""All that are known. Looked for in this order: LLAMA, whose calls need no opener, is the last."""
