"""Sessions that are to be: from a caller's request to what is kept."""

from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    ForkSessionRequest,
    RewindSessionRequest,
    Session,
    Turn,
    UpdateSessionRequest,
)

from antiphon_server.answer_size import check_answer_size
from antiphon_server.served_models import find_model
from antiphon_server.sessions.call_arguments import check_call_arguments
from antiphon_server.sessions.history_points import find_turn
from antiphon_server.sessions.records import (
    COMPLETED,
    Fork,
    NewSession,
    Receipt,
    SessionKey,
    SessionRow,
    TurnRow,
)
from antiphon_server.sessions.session_requests import Checker, check_create, settable
from antiphon_server.sessions.session_rows import SMALLER_SESSION, present, with_expiry
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn_request import fingerprint
from antiphon_server.times import NS_PER_S, to_timestamp
from antiphon_server.validation_fields import join_path


async def new_session(
    surroundings: Surroundings, tenant: str, request: CreateSessionRequest, *, path: str
) -> NewSession:
    """Returns what a request for a session makes. Raises AntiphonError, fields below `path`."""
    model = find_model(surroundings.models, request.session.model)
    now_ns = surroundings.clock.wall_ns()
    check_create(request, Checker(model=model, now_ns=now_ns), path=path)
    await check_call_arguments(request.items, join_path(path, "items"), surroundings.offload)
    key = SessionKey(tenant, request.session_id or surroundings.draws.draw_id())
    session = settable(request.session)
    session.model = model.name
    first_turn = _first_turn(surroundings, key, request) if request.items else None
    if first_turn:
        session.head_turn = first_turn.turn.name
        session.num_turns = 1
    row = _row(surroundings, key, session, now_ns=now_ns)
    return NewSession(
        row=row,
        first_turn=first_turn,
        receipt=receipt_of(surroundings, tenant, request, _told(row)),
        max_sessions=surroundings.tenancy.quotas.limits_of(tenant).max_sessions,
        max_stored_bytes=surroundings.tenancy.quotas.limits_of(tenant).max_stored_bytes,
    )


async def forked_session(
    surroundings: Surroundings, parent: SessionRow, request: ForkSessionRequest
) -> NewSession:
    """Returns what a request for a fork makes.

    Raises:
        AntiphonError: TURN_NOT_FOUND, STORE_UNAVAILABLE, or INVALID_FIELD where the turn is not in
            the history.
    """
    now_ns = surroundings.clock.wall_ns()
    tenant = parent.key.tenant
    key = SessionKey(tenant, request.session_id or surroundings.draws.draw_id())
    name = request.turn or parent.session.head_turn
    last = await find_turn(surroundings, parent.key, name, path="turn") if name else None
    session = settable(parent.session)
    session.model = parent.session.model
    session.parent_session = parent.key.name
    if last is not None:
        session.fork_turn = last.turn.name
        session.head_turn = key.turn_name(last.turn_id)
        session.num_turns = await surroundings.store.count_history(parent.key, last.position)
    position = 0 if last is None else last.position
    row = _row(surroundings, key, session, now_ns=now_ns, version=last.version if last else 0)
    return NewSession(
        row=row,
        fork=Fork(parent=parent.key, position=position),
        receipt=receipt_of(surroundings, tenant, request, _told(row)),
        max_sessions=surroundings.tenancy.quotas.limits_of(tenant).max_sessions,
        max_stored_bytes=surroundings.tenancy.quotas.limits_of(tenant).max_stored_bytes,
    )


async def keep_new(surroundings: Surroundings, new: NewSession) -> Session | None:
    """Keeps a new session; see SessionStore.create_session. Counts what a quota refuses."""
    with surroundings.tenancy.quotas.counted():
        return await surroundings.store.create_session(new)


def receipt_of(
    surroundings: Surroundings,
    tenant: str,
    request: CreateSessionRequest
    | UpdateSessionRequest
    | ForkSessionRequest
    | RewindSessionRequest,
    answer: Session,
) -> Receipt | None:
    """Returns what makes a retry of a request answer as the first time, if it asks for that."""
    if not request.request_id:
        return None
    return Receipt(
        tenant=tenant,
        request_id=request.request_id,
        fingerprint=fingerprint(request.DESCRIPTOR.name, request),
        create_ns=surroundings.clock.wall_ns(),
        answer=answer,
    )


def _row(
    surroundings: Surroundings, key: SessionKey, session: Session, *, now_ns: int, version: int = 0
) -> SessionRow:
    """Returns the row of a session that is created now.

    A fork takes over the version that its head had, so that the etag told with that turn is the
    fork's.
    """
    session.name = key.name
    session.create_time.CopyFrom(to_timestamp(now_ns))
    session.update_time.CopyFrom(to_timestamp(now_ns))
    row = SessionRow(
        key=key,
        session=session,
        version=version or 1,
        create_ns=now_ns,
        idle_since_ns=now_ns,
        expire_ns=None,
    )
    return with_expiry(row, default_ttl_ns=int(surroundings.limits.idle_ttl_s * NS_PER_S))


def _told(row: SessionRow) -> Session:
    answer = present(row, active=False)
    check_answer_size(answer, hint=SMALLER_SESSION)
    return answer


def _first_turn(
    surroundings: Surroundings, key: SessionKey, request: CreateSessionRequest
) -> TurnRow:
    turn_id = surroundings.draws.draw_id()
    now = to_timestamp(surroundings.clock.wall_ns())
    return TurnRow(
        position=1,
        turn_id=turn_id,
        generates=False,
        fingerprint=b"",
        version=1,
        turn=Turn(
            name=key.turn_name(turn_id),
            state=COMPLETED,
            input=request.items,
            last_sequence=2,
            epoch=surroundings.store.epoch,
            create_time=now,
            end_time=now,
        ),
    )
