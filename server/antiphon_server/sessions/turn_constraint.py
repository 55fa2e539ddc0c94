"""What the answer of a turn must look like, looked into before the turn is taken in."""

from collections.abc import Iterator, Mapping

from antiphon.v1.session_pb2 import Session
from antiphon.v1.types_pb2 import GenerationConfig

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.constraints.enforcement import ToolOffer, constraint_of
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.sessions.cleared_defaults import without_defaults
from antiphon_server.sessions.turn_request import TurnRequest
from antiphon_server.validation import check_config, merge_config
from antiphon_server.validation_tools import check_tool_choice, has_constraint, must_call


async def check_turn_constraint(
    request: TurnRequest, session: Session, models: Mapping[str, ServedModel]
) -> bool:
    """Checks that a new turn's output can be held to what it is to look like.

    Its answer stays known until the turn runs, or is found again then.

    Returns:
        Whether there was something to check.

    Raises:
        AntiphonError: it can't; names the field.
    """
    config = merge_config(
        without_defaults(session.defaults, request.cleared_defaults), request.config
    )
    if not (has_constraint(config) or session.tools):
        return False
    model, path = find_model(models, session.model), request.path
    check_config(config, model=model, path=f"{path}.config")
    check_tool_choice(config, session.tools, f"{path}.config")
    if request.continues:
        for description in _obstacles(config):
            raise InvalidRequest(FieldViolation(f"{path}.continue_answer", description))
    offer = ToolOffer(tools=session.tools, path="session")
    await constraint_of(config, model, path=f"{path}.config", offer=offer)
    return True


def _obstacles(config: GenerationConfig) -> Iterator[str]:
    """Yields why an answer can't be gone on with."""
    if has_constraint(config):
        yield (
            "does not go with a constraint, which would hold for what is added alone; set "
            "config.constraint.none to go on without one"
        )
    if must_call(config):
        yield (
            "does not go with a tool that must be called: nothing may stand before a call; set "
            "config.tool_choice.mode to MODE_AUTO or MODE_NONE to go on"
        )
