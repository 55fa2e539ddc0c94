"""What a list of conversations tells of each, so that a person finds the one that is meant."""

from typing import Final

from antiphon.v1 import session_pb2, types_pb2

from antiphon_cli.session_text import session_row
from antiphon_cli.terminal import visible
from antiphon_client import NotFound, SyncClient

_MAX_WORDS_CHARACTERS: Final = 48


def session_line(client: SyncClient, session: session_pb2.Session) -> str:
    """Returns a session in one line, with the size of its context and how it began.

    Asks for its first and its last turn; one that was deleted meanwhile is told without them.
    """
    if not session.num_turns:
        return session_row(session)
    try:
        first = _turn_of(client, session.name, newest=False)
        last = first if session.num_turns == 1 else _turn_of(client, session.name, newest=True)
    except NotFound:
        return session_row(session)
    num_tokens = last.usage.prompt_tokens + last.usage.output_tokens
    return session_row(session, num_tokens=num_tokens, words=first_words(first))


def first_words(turn: session_pb2.Turn) -> str:
    """Returns the beginning of what was said in a turn, in one line."""
    messages = [item.message for item in turn.input if item.HasField("message")]
    users = [each for each in messages if each.role == types_pb2.ROLE_USER]
    said = next((each.text for each in users or messages), "")
    # More than enough of it, so that a long text is not taken apart for a few words.
    words = visible(" ".join(said[: 20 * _MAX_WORDS_CHARACTERS].split()))
    if len(words) <= _MAX_WORDS_CHARACTERS:
        return words
    return words[: _MAX_WORDS_CHARACTERS - 1].rstrip() + "…"


def _turn_of(client: SyncClient, name: str, *, newest: bool) -> session_pb2.Turn:
    turns = client.sessions.list_turns(name, newest_first=newest, page_size=1)
    return next(turns, session_pb2.Turn())
