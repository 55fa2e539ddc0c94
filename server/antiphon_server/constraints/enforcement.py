"""From what a request asks for to the constraint that its output is held to."""

from antiphon.v1.types_pb2 import GenerationConfig

from antiphon_server.constraints.reading import read_constraint
from antiphon_server.constraints.request import CheckedConstraint
from antiphon_server.served_model import ServedModel


async def constraint_of(
    config: GenerationConfig, model: ServedModel, *, path: str, waits: bool = False
) -> CheckedConstraint | None:
    """Returns what outputs are held to; None: nothing.

    Args:
        config: Checked, but for what is inside of its constraint.
        model: What generates.
        path: The config's, for refusals.
        waits: Whether the check waits for its place in line, as it does for what was let in before.

    Raises:
        AntiphonError: it can't be enforced, or not be checked now.
    """
    request = read_constraint(config.constraint, limits=model.limits.constraints)
    if request is None:
        return None
    return await model.checker.check(request, path=f"{path}.constraint", waits=waits)
