"""Tool calls as a grammar: free text up to a call, then calls in the family's own wording."""

import enum
import json
import re
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
from antiphon.v1.types_pb2 import ToolCall

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.refusals import UnsupportedConstraintError

_ANY_TEXT: Final = "/(?s:.*)/"
_SOME_TEXT: Final = "/(?s:.+)/"
_NO_PARAMETERS: Final = '{"type":"object","properties":{},"additionalProperties":false}'
_MAX_BLANK: Final = 1
"""White space in arguments: as much as models write between a colon and a value."""


class CallChoice(enum.StrEnum):
    """Whether there are calls."""

    FREE = "free"
    NONE = "none"
    REQUIRED = "required"
    """One at least, and nothing else."""
    ONE = "one"
    """Exactly one, and nothing else."""


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that may be called."""

    index: int
    """Its place among the caller's tools, not all of which may be called."""
    name: str
    schema: str
    """Of its parameters; empty: it has none."""


class CallWording(msgspec.Struct, frozen=True, kw_only=True):
    """How the model writes calls; see `text.tool_formats.Wording`."""

    opener: str
    """What a call is known by; empty: it has a bare opener only."""
    after_opener: str = ""
    """What belongs to it all the same."""
    heads: tuple[str, ...]
    """Of each tool."""
    tail: str
    separator: str
    closer: str
    bare_opener: str = ""
    """What an answer must not begin with that is no call."""
    control_ids: dict[str, int] = {}
    """Parts of these texts that are single tokens, which match no text."""


class ToolsConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """What an output may be where tools are on offer."""

    tools: tuple[OfferedTool, ...]
    choice: CallChoice
    takes_several: bool
    """Whether there may be more than one call."""
    wording: CallWording


class ArgumentRules(Protocol):
    """Rules of a Lark grammar for the texts of a schema's instances."""

    @property
    def start(self) -> str:
        """The rule that stands for all of them."""

    @property
    def text(self) -> str:
        """The rules."""


RulesOf = Callable[[str, str, int], ArgumentRules]
"""Makes them: of a schema, names beginning with a prefix, with at most so much white space."""


def plan_calls(text: str, rules_of: RulesOf) -> Grammar:
    """Returns the grammar of exactly the outputs that a tools constraint allows.

    Raises:
        UnsupportedConstraintError: names the tool and the part of its schema.
        ConstraintTooComplexError: a limit is passed.
    """
    constraint = msgspec.json.decode(text, type=ToolsConstraint)
    writer = _Writer(constraint.wording)
    lines = [f"start: {writer.start(constraint.choice)}", *writer.texts()]
    if constraint.choice is not CallChoice.NONE:
        lines.append(writer.calls(most=most_calls(constraint)))
        lines += _call_rules(constraint, rules_of, writer)
    return Grammar(backend=GrammarBackend.LLGUIDANCE, text="\n".join(lines) + "\n")


def _call_rules(constraint: ToolsConstraint, rules_of: RulesOf, writer: "_Writer") -> list[str]:
    alternatives, lines = [], []
    for index, (tool, head) in enumerate(
        zip(constraint.tools, constraint.wording.heads, strict=True)
    ):
        rules = _rules_of_tool(tool, index, rules_of)
        tail = writer.literal(constraint.wording.tail)
        alternatives.append(" ".join(filter(None, (writer.literal(head), rules.start, tail))))
        lines.append(rules.text)
    return [f"call: {' | '.join(alternatives)}", *lines]


def _rules_of_tool(tool: OfferedTool, index: int, rules_of: RulesOf) -> ArgumentRules:
    try:
        return rules_of(arguments_schema(tool.schema), f"t{index}_", _MAX_BLANK)
    except UnsupportedConstraintError as error:
        raise UnsupportedConstraintError(
            f"[{tool.index}].parameters_json_schema#{error.path}",
            f"tool {tool.name!r}: {error.message}",
        ) from error


def most_calls(constraint: ToolsConstraint) -> int | None:
    """Returns how many calls an answer may have; None: any number.

    Where no tool takes arguments, there are as many different calls as tools. More of them would
    only say the same again, which a model that may say nothing else is prone to do.
    """
    if constraint.choice is CallChoice.ONE or not constraint.takes_several:
        return 1
    if all(_takes_no_arguments(tool.schema) for tool in constraint.tools):
        return len(constraint.tools)
    return None


def _takes_no_arguments(schema: str) -> bool:
    """Whether arguments are {} by all means, as far as it can be seen at once."""
    try:
        value = json.loads(schema or _NO_PARAMETERS)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or value.get("properties") or value.get("patternProperties"):
        return False
    return value.get("additionalProperties") is False or value.get("maxProperties") == 0


def arguments_schema(schema: str) -> str:
    """Returns the schema of a tool's arguments, which are an object: where none is given, {}.

    What can't be read is left to those who read it for real.

    Raises:
        UnsupportedConstraintError: it allows no object.
    """
    if not schema:
        return _NO_PARAMETERS
    try:
        value = json.loads(schema)
    except (ValueError, RecursionError):
        return schema
    if value is True:
        return '{"type":"object"}'
    if not isinstance(value, dict):
        return schema
    kinds = value.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise UnsupportedConstraintError("/type", "arguments are an object, and this allows none")
    # The text stays as it is, but for its first key: of one given twice the last counts.
    inner = schema.strip().removeprefix("{").removesuffix("}").strip()
    if "type" not in value:
        return '{"type":"object"' + (f",{inner}" if inner else "") + "}"
    return schema if kinds == "object" else json.dumps({**value, "type": "object"})


class _Writer:
    """Writes the rules that surround the tools' own."""

    def __init__(self, wording: CallWording) -> None:
        self._wording = wording
        controls = "|".join(map(re.escape, sorted(wording.control_ids, key=len, reverse=True)))
        self._controls = re.compile(f"({controls})") if controls else None

    def literal(self, text: str) -> str:
        """Returns a fixed text as symbols: what is a single token stands as that."""
        parts = self._controls.split(text) if self._controls else [text]
        ids = self._wording.control_ids
        return " ".join(
            f"<[{ids[part]}]>" if part in ids else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def start(self, choice: CallChoice) -> str:
        """Returns what an output is."""
        opener, is_text = self._wording.opener, self._opener_is_text
        after = self.literal(self._wording.after_opener)
        at_start = [f"{self.literal(opener)} {after} calls"] if opener else []
        if self._wording.bare_opener:
            at_start.append("calls")
        if choice is CallChoice.NONE:
            return "TEXT"
        if choice is not CallChoice.FREE:
            return " | ".join(at_start)
        if is_text:
            return f"TEXT | text_and_opener {after} calls"
        behind_text = [f"TEXT_BEFORE {self.literal(opener)} {after} calls"] if opener else []
        return " | ".join(["TEXT", *behind_text, *at_start])

    def texts(self) -> list[str]:
        """Returns the rules for free text: none in which a call would begin."""
        excluded, opener = [], _regex(self._wording.opener)
        if self._opener_is_text:
            excluded.append(f"(?s:.*){opener}(?s:.*)")
        if self._wording.bare_opener:
            excluded.append(rf"[ \t\r\n]*{_regex(self._wording.bare_opener)}(?s:.*)")
        without = "".join(f" & ~/{each}/" for each in excluded)
        lines = [f"TEXT: {_ANY_TEXT}{without}", f"TEXT_BEFORE: {_SOME_TEXT}{without}"]
        if self._opener_is_text:
            lines.append(f"text_and_opener[lazy]: /(?s:.*){opener}/")
        return lines

    def calls(self, *, most: int | None) -> str:
        """Returns the rule for calls, up to the end; None: for any number of them."""
        separator = self.literal(self._wording.separator)
        times = "*" if most is None else f"{{0,{most - 1}}}"
        more = "" if most == 1 else f" ({separator} call){times}"
        return f"calls: call{more} {self.literal(self._wording.closer)}".rstrip()

    @property
    def _opener_is_text(self) -> bool:
        opener = self._wording.opener
        return bool(opener) and opener not in self._wording.control_ids


def _regex(text: str) -> str:
    """Returns the expression, as Lark grammars have it, of one text."""
    return re.sub(r"[^A-Za-z0-9_ ]", lambda found: f"\\x{{{ord(found.group()):X}}}", text)


def calls_as_text(calls: Iterable[ToolCall]) -> str:
    """Returns calls as `find_fault_in_calls` takes them."""
    return json.dumps([[call.tool_name, call.arguments_json] for call in calls])


def find_fault_in_calls(
    constraint_text: str, calls_text: str, find_in_arguments: Callable[[str, str], str | None]
) -> str:
    """Returns what is wrong with an output's calls; empty: nothing.

    Args:
        constraint_text: What they had to be like.
        calls_text: The calls.
        find_in_arguments: Returns what is wrong with arguments under a schema; None: it can't say.
    """
    constraint = msgspec.json.decode(constraint_text, type=ToolsConstraint)
    calls = msgspec.json.decode(calls_text, type=list[tuple[str, str]])
    schemas = {tool.name: tool.schema for tool in constraint.tools}
    fewest = int(constraint.choice in (CallChoice.REQUIRED, CallChoice.ONE))
    if len(calls) < fewest:
        return "it calls no tool"
    if calls and constraint.choice is CallChoice.NONE:
        return "it calls a tool"
    most = most_calls(constraint)
    if most is not None and len(calls) > most:
        return f"it has {len(calls)} calls; the limit is {most}"
    for name, arguments in calls:
        if name not in schemas:
            return f"the tool {name!r} may not be called"
        if fault := find_in_arguments(arguments_schema(schemas[name]), arguments):
            return f"the arguments of {name!r}: {fault}"
    return ""
