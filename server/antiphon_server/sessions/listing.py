"""Pages of sessions and of turns."""

import asyncio
from collections.abc import Iterable
from typing import Final

from antiphon.v1.session_pb2 import (
    ListSessionsRequest,
    ListSessionsResponse,
    ListTurnsRequest,
    ListTurnsResponse,
    Turn,
)

from antiphon_server.answer_size import check_answer_size
from antiphon_server.sessions.names import parse_session_name
from antiphon_server.sessions.page_tokens import page_limit, read_page_token, write_page_token
from antiphon_server.sessions.records import FAILED, SessionQuery, TurnQuery
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.sessions.session_requests import check_labels
from antiphon_server.sessions.session_rows import present

MAX_PAGE_BYTES: Final = 2 << 20
_ROWS_AT_A_TIME: Final = 32


async def list_sessions(
    registry: SessionRegistry, tenant: str, request: ListSessionsRequest
) -> ListSessionsResponse:
    """Returns a page of a tenant's sessions, latest creation first. Raises AntiphonError."""
    limit = page_limit(request.page_size)
    check_labels(request.labels, "labels")
    filters = [f"{key}={value}" for key, value in sorted(request.labels.items())]
    listed = ["sessions", tenant, *filters]
    position = read_page_token(request.page_token, listed=listed, kinds=(int, str))
    before = None if position is None else (int(position[0]), str(position[1]))
    rows = await registry.surroundings.store.list_sessions(
        SessionQuery(tenant=tenant, labels=request.labels, before=before, limit=limit + 1)
    )
    now_ns = registry.surroundings.clock.wall_ns()
    response = ListSessionsResponse()
    size_bytes = 0
    for index, row in enumerate(rows):
        await _let_others_run(index)
        active = registry.is_active(row.key)
        session = present(row, active=active)
        size_bytes += session.ByteSize()
        if index == limit or (index and size_bytes > MAX_PAGE_BYTES):
            last = rows[index - 1]
            place: list[int | str] = [last.create_ns, last.key.session_id]
            response.next_page_token = write_page_token(place, listed=listed)
            break
        if active or row.expire_ns is None or row.expire_ns > now_ns:
            response.sessions.append(session)
    check_answer_size(response, hint="read the sessions one by one")
    return response


async def list_turns(
    registry: SessionRegistry, tenant: str, request: ListTurnsRequest
) -> ListTurnsResponse:
    """Returns a page of a session's turns. Raises AntiphonError."""
    limit = page_limit(request.page_size)
    key = parse_session_name(tenant, request.session, "session")
    listed = ["turns", tenant, key.session_id, str(request.newest_first), str(request.show_all)]
    position = read_page_token(request.page_token, listed=listed, kinds=(int,))
    response = ListTurnsResponse()
    async with registry.use(key) as session:
        rows = await registry.surroundings.store.list_turns(
            TurnQuery(
                key=key,
                after_position=None if position is None else int(position[0]),
                limit=limit + 1,
                newest_first=request.newest_first,
                show_all=request.show_all,
            )
        )
        size_bytes = 0
        for index, row in enumerate(rows):
            await _let_others_run(index)
            turn = await session.logs.as_it_stands(row)
            size_bytes += turn.ByteSize()
            if index == limit or (index and size_bytes > MAX_PAGE_BYTES):
                place = [rows[index - 1].position]
                response.next_page_token = write_page_token(place, listed=listed)
                break
            if request.show_all or turn.state != FAILED:
                response.turns.append(turn)
    check_answer_size(response, hint=_too_large_hint(response.turns))
    return response


async def _let_others_run(index: int) -> None:
    """Keeps a long page from holding the event loop up."""
    if index % _ROWS_AT_A_TIME == 0:
        await asyncio.sleep(0)


def _too_large_hint(turns: Iterable[Turn]) -> str:
    names = ", ".join(turn.name for turn in turns)
    return f"read the events of {names} instead, which RunTurn replays for a turn's id"
