"""The tables of checkpoints: how far turns are that have not ended."""

import sqlite3
from array import array

from antiphon_engine.api.frames import FrameError, decode_logprobs, encode_logprobs
from antiphon_engine.api.messages import TokenLogprobs
from antiphon_server.sessions.records import (
    QUEUED,
    RUNNING,
    Checkpoint,
    SessionKey,
    TurnTokens,
    token_array,
)
from antiphon_server.sessions.sqlite_rows import fetch

_OF_TURN = "tenant = ? AND session_id = ? AND position = ?"


def write_checkpoint(
    connection: sqlite3.Connection,
    key: SessionKey,
    position: int,
    checkpoint: Checkpoint,
    *,
    epoch: int,
) -> bool:
    """See SessionStore.keep_checkpoint."""
    place = (key.tenant, key.session_id, position)
    tokens = checkpoint.tokens
    written = connection.execute(
        "INSERT INTO checkpoints SELECT tenant, session_id, position, ?, ?, ?, ? FROM turns"
        f" WHERE {_OF_TURN} AND state IN ({QUEUED}, {RUNNING}) AND EXISTS"
        " (SELECT 1 FROM sessions WHERE tenant = ? AND session_id = ? AND epoch <= ?)"
        " ON CONFLICT DO UPDATE SET num_attempts = excluded.num_attempts",
        (
            checkpoint.num_attempts,
            None if tokens.head_ids is None else tokens.head_ids.tobytes(),
            tokens.head_digest,
            tokens.added_ids.tobytes(),
            *place,
            *(key.tenant, key.session_id, epoch),
        ),
    )
    if written.rowcount and tokens.output_ids:
        connection.execute(
            "INSERT OR REPLACE INTO checkpoint_parts VALUES (?, ?, ?, ?, ?, ?)",
            (
                *place,
                checkpoint.num_kept_before,
                tokens.output_ids.tobytes(),
                encode_logprobs(checkpoint.logprobs),
            ),
        )
    return bool(written.rowcount)


def read_checkpoint(
    connection: sqlite3.Connection, key: SessionKey, position: int
) -> Checkpoint | None:
    """See SessionStore.read_checkpoint."""
    place = (key.tenant, key.session_id, position)
    row = connection.execute(
        f"SELECT num_attempts, head_ids, head_digest, added_ids FROM checkpoints WHERE {_OF_TURN}",
        place,
    ).fetchone()
    if row is None:
        return None
    num_attempts, head_ids, head_digest, added_ids = row
    output_ids, logprobs = _read_parts(connection, place)
    return Checkpoint(
        num_attempts=num_attempts,
        tokens=TurnTokens(
            head_ids=None if head_ids is None else token_array(head_ids),
            head_digest=head_digest,
            added_ids=token_array(added_ids),
            output_ids=output_ids,
        ),
        logprobs=logprobs,
    )


def _read_parts(
    connection: sqlite3.Connection, place: tuple[str, str, int]
) -> tuple["array[int]", list[TokenLogprobs]]:
    """Returns the output so far, up to the first part that is missing."""
    sql = f"SELECT first_token, output_ids, logprobs FROM checkpoint_parts WHERE {_OF_TURN}"
    output_ids, logprobs = token_array(), list[TokenLogprobs]()
    for first_token, ids, packed in fetch(connection, f"{sql} ORDER BY first_token", place):
        if first_token != len(output_ids):
            break
        assert isinstance(ids, bytes)
        assert isinstance(packed, bytes)
        output_ids.frombytes(ids)
        try:
            logprobs += decode_logprobs(packed)
        except FrameError as error:
            raise sqlite3.DatabaseError(f"a checkpoint holds {error}") from error
    return output_ids, logprobs
