"""Tools on offer as a constraint: what the checker must know of them and of the model's habits."""

from collections.abc import Sequence

import msgspec
from antiphon.v1.types_pb2 import Tool, ToolChoice

from antiphon_server.constraints.request import ConstraintKind, ConstraintRequest
from antiphon_server.constraints.tool_calls import (
    CallChoice,
    CallWording,
    OfferedTool,
    ToolsConstraint,
)
from antiphon_server.served_model import ServedModel
from antiphon_server.text.tokenizer import Tokenizer
from antiphon_server.text.tool_formats import ToolFormat

_CHOICES = {
    ToolChoice.MODE_NONE: CallChoice.NONE,
    ToolChoice.MODE_REQUIRED: CallChoice.REQUIRED,
}


def tools_constraint(
    choice: ToolChoice, tools: Sequence[Tool], model: ServedModel
) -> ConstraintRequest:
    """Returns what outputs are held to where tools are on offer.

    REQUIRES: the model's template shows how it calls tools; a tool that must be called is there.
    """
    habits = model.renderer.habits
    assert habits.tools is not None
    named = choice.tool_name if choice.WhichOneof("choice") == "tool_name" else ""
    offered = [
        OfferedTool(index=index, name=tool.name, schema=tool.parameters_json_schema)
        for index, tool in enumerate(tools)
        if not named or tool.name == named
    ]
    assert offered
    constraint = ToolsConstraint(
        tools=tuple(offered),
        choice=CallChoice.ONE if named else _CHOICES.get(choice.mode, CallChoice.FREE),
        takes_several=habits.takes_several_calls and _may_be_several(choice),
        wording=_wording_of(habits.tools, offered, model.tokenizer),
    )
    text = msgspec.json.encode(constraint).decode()
    return ConstraintRequest(kind=ConstraintKind.TOOLS, text=text)


def _may_be_several(choice: ToolChoice) -> bool:
    return not choice.HasField("parallel_calls") or choice.parallel_calls


def _wording_of(
    tool_format: ToolFormat, tools: Sequence[OfferedTool], tokenizer: Tokenizer
) -> CallWording:
    wording, known = tool_format.wording, tokenizer.control_tokens.by_text
    control_ids = {
        marker: known[marker].token_id
        for marker in tool_format.markers
        if marker in known and known[marker].token_id in tokenizer.special_ids
    }
    # A model that begins its calls barely may know the token that begins others' calls.
    is_bare = not wording.opener
    knows_opener = tool_format.opener in control_ids
    return CallWording(
        opener=tool_format.opener if knows_opener or not is_bare else "",
        after_opener=wording.opener.removeprefix(tool_format.opener),
        heads=tuple(wording.head_of(tool.name) for tool in tools),
        tail=wording.tail,
        separator=wording.separator,
        closer=wording.closer,
        bare_opener=tool_format.bare_opener,
        control_ids=control_ids,
    )
