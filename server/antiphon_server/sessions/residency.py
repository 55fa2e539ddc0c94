"""Where a session's context is."""

from antiphon.v1.session_pb2 import Residency

from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.messages import Scope
from antiphon_server.sessions.ledger import Ledger
from antiphon_server.sessions.prompt_head import PromptHead
from antiphon_server.sessions.surroundings import Surroundings


async def residency_of(ledger: Ledger, surroundings: Surroundings) -> Residency:
    """Returns where the context is; what the engine can't tell counts as computed again."""
    history, row = ledger.history, ledger.row
    model = surroundings.models.get(row.session.model)
    if model is None or not history.answered:
        return Residency()
    try:
        head = PromptHead(instructions=row.session.instructions, tools=tuple(row.session.tools))
        log = await surroundings.offload.run(history.log, model.renderer, head)
    except AntiphonError:
        return Residency()
    try:
        scope = surroundings.tenancy.scopes.engine_scope(Scope(tenant=row.key.tenant))
        cached = await model.engine.match_prefix(scope, log.tobytes())
    except AntiphonError:
        cached = 0
    return Residency(device_tokens=cached, context_tokens=len(log))
