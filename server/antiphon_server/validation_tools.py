"""Tools on offer, and whether and which of them must be called."""

import re
from collections.abc import Sequence
from typing import Final

from antiphon.v1.types_pb2 import GenerationConfig, Tool, ToolChoice

from antiphon_server.capabilities import unsupported_feature
from antiphon_server.constraints.reading import check_size
from antiphon_server.served_model import ServedModel
from antiphon_server.validation_fields import Violations

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_tools(tools: Sequence[Tool], path: str, *, model: ServedModel) -> None:
    """Checks tools on offer, but not what their schemas say.

    Raises:
        InvalidRequest: names the fields below `path`.
        AntiphonError: UNSUPPORTED_FEATURE; CONSTRAINT_TOO_COMPLEX, their schemas are too large.
    """
    if not tools:
        return
    if not model.capabilities.tools:
        raise unsupported_feature("tools", path)
    violations = Violations()
    violations.check_count(path, len(tools), MAX_TOOLS)
    names: set[str] = set()
    for index, tool in enumerate(tools[:MAX_TOOLS]):
        if not _NAME.fullmatch(tool.name):
            violations.add(
                f"{path}[{index}].name",
                f"must be 1 to 64 characters from a-z, A-Z, 0-9, '_' and '-', is "
                f"{tool.name[:80]!r}",
            )
        elif tool.name in names:
            violations.add(f"{path}[{index}].name", f"{tool.name!r} is in the list twice")
        names.add(tool.name)
    violations.raise_if_any()
    size_bytes = sum(len(tool.parameters_json_schema.encode()) for tool in tools)
    check_size(size_bytes, model.limits.constraints, path)


def check_tool_choice(config: GenerationConfig, tools: Sequence[Tool], path: str) -> None:
    """Checks that what must be called is on offer, and that nothing else is asked of the answer.

    Raises:
        InvalidRequest: names the field below `path`.
    """
    violations = Violations()
    choice = config.tool_choice
    names = [tool.name for tool in tools]
    if choice.WhichOneof("choice") == "tool_name" and choice.tool_name not in names:
        on_offer = ", ".join(names[:16]) or "none"
        violations.add(
            f"{path}.tool_choice.tool_name",
            f"{choice.tool_name[:80]!r} is not on offer; tools are: {on_offer}",
        )
    if choice.mode == ToolChoice.MODE_REQUIRED and not tools:
        violations.add(
            f"{path}.tool_choice.mode", "MODE_REQUIRED needs tools, and none is on offer"
        )
    if has_constraint(config) and reads_calls(config, tools):
        violations.add(
            f"{path}.constraint",
            "holds for the whole answer, so it does not go with tools that may be called; set "
            "tool_choice.mode to MODE_NONE, or leave one of them out",
        )
    if tools and config.stop.ignore_eos:
        # The end of an output that may have calls is told by an end-of-sequence token alone.
        violations.add(f"{path}.stop.ignore_eos", "does not go with tools")
    violations.raise_if_any()


def reads_calls(config: GenerationConfig, tools: Sequence[Tool]) -> bool:
    """Whether the model may call tools."""
    return bool(tools) and config.tool_choice.mode != ToolChoice.MODE_NONE


def must_call(config: GenerationConfig) -> bool:
    """Whether an answer is a call, with nothing before it."""
    choice = config.tool_choice
    return choice.WhichOneof("choice") == "tool_name" or choice.mode == ToolChoice.MODE_REQUIRED


def is_constrained(config: GenerationConfig, tools: Sequence[Tool]) -> bool:
    """Whether an answer is held to a grammar: by its constraint, or since calls must be sound."""
    return bool(tools) or has_constraint(config)


def has_constraint(config: GenerationConfig) -> bool:
    """Whether an answer must look like something."""
    return config.constraint.WhichOneof("kind") not in (None, "none")
