"""From what a request asks for to the constraint that its output is held to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import GenerationConfig, Tool

from antiphon_server.constraints.reading import read_constraint
from antiphon_server.constraints.request import CheckedConstraint
from antiphon_server.constraints.tools import tools_constraint
from antiphon_server.served_model import ServedModel
from antiphon_server.validation_tools import check_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """Tools on offer, and where they are named."""

    tools: Sequence[Tool] = ()
    path: str = ""
    """Of what has them in its field `tools`."""


NO_TOOLS: Final = ToolOffer()


async def constraint_of(
    config: GenerationConfig,
    model: ServedModel,
    *,
    path: str,
    offer: ToolOffer = NO_TOOLS,
    waits: bool = False,
) -> CheckedConstraint | None:
    """Returns what outputs are held to; None: nothing.

    Args:
        config: Checked, but for what is inside of its constraint.
        model: What generates.
        path: The config's, for refusals.
        offer: What calls must keep to.
        waits: Whether the check waits for its place in line, as it does for what was let in before.

    Raises:
        InvalidRequest: a tool's field is at fault.
        AntiphonError: it can't be enforced, or not be checked now; the model takes no tools.
    """
    request = read_constraint(config.constraint, limits=model.limits.constraints)
    if request is None and offer.tools:
        check_tools(offer.tools, f"{offer.path}.tools", model=model)
        calls = tools_constraint(config.tool_choice, offer.tools, model)
        return await model.checker.check(calls, path=offer.path, waits=waits)
    if request is None:
        return None
    return await model.checker.check(request, path=f"{path}.constraint", waits=waits)
