"""What a turn's record says from its beginning on."""

from antiphon.v1.types_pb2 import Item

from antiphon_server.sessions.records import SessionKey
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.telemetry.request_record import RequestKind
from antiphon_server.telemetry.request_recorder import RequestStart


def begin_record(
    turn: LiveTurn, key: SessionKey, *, model: str, surroundings: Surroundings
) -> None:
    """Begins the record of a turn that was taken in, now or by an earlier server.

    Args:
        turn: Its receipt is known.
        key: Of its session.
        model: The session's, by its resource name.
        surroundings: Whom to tell.
    """
    request = turn.request
    start = RequestStart(
        kind=RequestKind.TURN if request.generates else RequestKind.APPENDED_TURN,
        received_ns=turn.received_ns,
        context=request.trace,
        is_own_context=request.has_own_trace,
        call=request.call,
        model=model,
        tenant=key.tenant,
        session=key.name,
        turn=key.turn_name(turn.turn_id),
        epoch=turn.log.epoch,
        is_recovered=turn.earlier is not None,
    )
    turn.recorder = surroundings.telemetry.begin_request(start)
    turn.recorder.note_input(lambda: "\n".join(_text_of(item) for item in request.items))
    turn.message.trace_id = turn.recorder.trace_id
    turn.message.traceparent = turn.recorder.traceparent


def _text_of(item: Item) -> str:
    kind = item.WhichOneof("kind")
    if kind == "message":
        return item.message.text
    return item.tool_result.text if kind == "tool_result" else item.tool_call.arguments_json
