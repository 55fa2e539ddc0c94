"""Places in a session's history, and what a turn that stands on one builds upon."""

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.v1.session_pb2 import HistoryPoint, Turn
from antiphon.v1.types_pb2 import (
    FINISH_REASON_CANCELLED,
    FINISH_REASON_MAX_OUTPUT_TOKENS,
    FINISH_REASON_TIME_LIMIT,
    FinishReason,
)

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.sessions.history import History, load_history
from antiphon_server.sessions.names import parse_turn_name, turn_not_found
from antiphon_server.sessions.records import (
    COMPLETED,
    FAILED,
    QUEUED,
    RUNNING,
    SUPERSEDED,
    SessionKey,
    SessionRow,
    TurnRow,
)
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn_request import TurnRequest
from antiphon_server.tool_results import CallsBefore, calls_open_behind, results_missing

_CONTINUABLE = (
    FINISH_REASON_MAX_OUTPUT_TOKENS,
    FINISH_REASON_TIME_LIMIT,
    FINISH_REASON_CANCELLED,
)
_STATES: Mapping["Turn.State.ValueType", str] = {
    QUEUED: "has not ended",
    RUNNING: "has not ended",
    FAILED: "has failed",
    SUPERSEDED: "was superseded by a rewind",
}
"""How turns that are not in the history are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a turn stands on: the history up to its last turn."""

    history: History
    head_turn: str
    """The last turn's name; empty: there is none."""
    num_turns: int
    rewound_to: int | None = None
    """The last turn's position, where the session's head lies behind it; 0: there is no turn."""


async def find_turn(
    surroundings: Surroundings, key: SessionKey, name: str, *, path: str
) -> TurnRow:
    """Returns a turn of a session's history.

    Raises:
        InvalidRequest: it is no turn of this session, or not in its history.
        AntiphonError: TURN_NOT_FOUND or STORE_UNAVAILABLE.
    """
    named, turn_id = parse_turn_name(key.tenant, name, path)
    if named != key:
        raise InvalidRequest(FieldViolation(path, f"must be a turn of {key.name}; is {name}"))
    row = await surroundings.store.read_turn(key, turn_id)
    if row is None:
        raise turn_not_found(key, turn_id)
    if row.turn.state != COMPLETED:
        raise InvalidRequest(
            FieldViolation(
                path,
                f"must be a completed turn of the history; {name} {_STATES[row.turn.state]}."
                " ListTurns lists the history",
            )
        )
    return row


async def base_at(
    surroundings: Surroundings, session: SessionRow, point: HistoryPoint, *, path: str
) -> Base:
    """Reads the history up to a place in it. Raises like `find_turn`."""
    policy = session.session.history_policy
    if point.WhichOneof("point") == "start":
        return Base(history=History(policy=policy), head_turn="", num_turns=0, rewound_to=0)
    last = await find_turn(surroundings, session.key, point.turn, path=f"{path}.turn")
    rows = await surroundings.store.read_history(session.key, up_to=last.position)
    history = await surroundings.offload.run(load_history, policy, rows)
    return Base(
        history=history,
        head_turn=last.turn.name,
        num_turns=len(rows),
        rewound_to=last.position,
    )


def check_continuable(base: Base, path: str) -> None:
    """Checks that the last answer can be gone on with. Raises InvalidRequest."""
    if base.history.head_end in _CONTINUABLE:
        return
    *others, last = [FinishReason.Name(reason) for reason in _CONTINUABLE]
    if not base.head_turn:
        is_now = "the session has no turns"
    elif base.history.head_end:
        is_now = f"{base.head_turn} ended with {FinishReason.Name(base.history.head_end)}"
    else:
        is_now = f"{base.head_turn} has no answer"
    raise InvalidRequest(
        FieldViolation(
            path,
            f"needs a head whose answer ended with {', '.join(others)} or {last}; {is_now}",
        )
    )


def check_results(history: History, head_turn: str, request: TurnRequest) -> None:
    """Checks that results answer the calls of a history, and that none is missing for an answer.

    Args:
        history: What the request stands on.
        head_turn: The name of its last turn.
        request: What is asked.

    Raises:
        InvalidRequest: a result answers nothing.
        AntiphonError: TOOL_RESULTS_MISSING.
    """
    before = CallsBefore(open=history.open_calls, dropped=history.dropped_calls, turn=head_turn)
    still_open = calls_open_behind(before, request.items, f"{request.path}.items")
    if still_open and request.generates:
        raise results_missing(still_open, f"after {head_turn}", turn=head_turn)
