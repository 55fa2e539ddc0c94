"""How sessions and turns are written for a person."""

from collections.abc import Iterator
from datetime import UTC
from typing import Final

from antiphon.v1 import session_pb2, types_pb2

from antiphon_cli.terminal import visible

_PREFIX: Final = "sessions/"
_MARKS: Final = {
    types_pb2.ROLE_USER: "> ",
    types_pb2.ROLE_SYSTEM: "# ",
    types_pb2.ROLE_ASSISTANT: "",
}


def full_name(name: str) -> str:
    """Returns `sessions/{session}` of that or of the id alone."""
    return name if name.startswith(_PREFIX) else _PREFIX + name


def full_turn_name(name: str) -> str:
    """Returns `sessions/{session}/turns/{turn}` of that or of both ids; of a session's, nothing."""
    session, _, turn = name.removeprefix(_PREFIX).partition("/")
    turn = turn.removeprefix("turns/")
    return f"{_PREFIX}{session}/turns/{turn}" if turn else ""


def short_name(name: str) -> str:
    """Returns the id alone."""
    return name.removeprefix(_PREFIX)


def turns_text(num_turns: int) -> str:
    """Returns how many turns."""
    return f"{num_turns} turn{'' if num_turns == 1 else 's'}"


def session_row(session: session_pb2.Session, *, num_tokens: int = 0, words: str = "") -> str:
    """Returns a session in one line: id, turns, tokens, when it last changed, what it is doing.

    Args:
        session: As the server tells it.
        num_tokens: Of its context; 0: not known.
        words: What else is told of it, in one line.
    """
    update_time = session.update_time.ToDatetime(tzinfo=UTC).astimezone()
    tokens = f"{num_tokens:,} tokens" if num_tokens else ""
    state = "active" if session.state == session_pb2.Session.STATE_ACTIVE else "idle"
    row = (
        f"{short_name(session.name):<32}  {turns_text(session.num_turns):>9}  {tokens:>14}  "
        f"{update_time:%Y-%m-%d %H:%M}  {state:<6}  {words}"
    )
    return row.rstrip()


def turn_text(turn: session_pb2.Turn) -> str:
    """Returns what was said in a turn: what was brought, marked by role, then the answer."""
    return "\n".join(visible(line) for line in _lines(turn))


def _lines(turn: session_pb2.Turn) -> Iterator[str]:
    for item in turn.input:
        match item.WhichOneof("kind"):
            case "message":
                yield _MARKS.get(item.message.role, "") + item.message.text
            case "tool_call":
                yield _call(item.tool_call)
            case "tool_result":
                yield f"= {item.tool_result.text}"
    if turn.output.text:
        yield turn.output.text
    for call in turn.output.tool_calls:
        yield _call(call)


def _call(call: types_pb2.ToolCall) -> str:
    return f"* {call.tool_name}({call.arguments_json})"
