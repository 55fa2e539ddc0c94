"""The tables of checkpoints: how far turns are that have not ended."""

import sqlite3
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

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
from antiphon_server.sessions.sqlite_rows import Cell, fetch

_OF_TURN = "tenant = ? AND session_id = ? AND position = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCheckpoint:
    """A checkpoint, and the turn that it is of."""

    key: SessionKey
    position: int
    checkpoint: Checkpoint

    @property
    def place(self) -> tuple[str, str, int]:
        """What its rows are found by."""
        return self.key.tenant, self.key.session_id, self.position

    @property
    def head(self) -> tuple[Cell, ...]:
        """Its row of `checkpoints`."""
        tokens = self.checkpoint.tokens
        return (
            *self.place,
            self.checkpoint.num_attempts,
            None if tokens.head_ids is None else tokens.head_ids.tobytes(),
            tokens.head_digest,
            tokens.added_ids.tobytes(),
        )

    @property
    def part(self) -> tuple[Cell, ...]:
        """Its row of `checkpoint_parts`."""
        checkpoint = self.checkpoint
        output_ids = checkpoint.tokens.output_ids.tobytes()
        logprobs = encode_logprobs(checkpoint.logprobs)
        return (*self.place, checkpoint.num_kept_before, output_ids, logprobs)


def write_checkpoints(
    connection: sqlite3.Connection, checkpoints: Sequence[TurnCheckpoint], *, epoch: int
) -> list[bool]:
    """Keeps checkpoints of different turns; says of each whether it is kept.

    See SessionStore.keep_checkpoint. Two statements for all of them: the thread has to get the
    interpreter back behind each.
    """
    heads = [each.head for each in checkpoints]
    written = connection.execute(
        "INSERT INTO checkpoints WITH due"
        " (tenant, session_id, position, num_attempts, head_ids, head_digest, added_ids)"
        f" AS (VALUES {_rows_of(heads)})"
        " SELECT due.* FROM due"
        " CROSS JOIN turns USING (tenant, session_id, position)"
        " CROSS JOIN sessions USING (tenant, session_id)"
        f" WHERE turns.state IN ({QUEUED}, {RUNNING}) AND sessions.epoch <= ?"
        " ON CONFLICT DO UPDATE SET num_attempts = excluded.num_attempts",
        [*(cell for row in heads for cell in row), epoch],
    )
    if written.rowcount < len(checkpoints) and len(checkpoints) > 1:
        # Which of them are not there is seen by looking at each.
        return [write_checkpoints(connection, [each], epoch=epoch)[0] for each in checkpoints]
    if written.rowcount:
        _write_parts(connection, checkpoints)
    return [bool(written.rowcount)] * len(checkpoints)


def _write_parts(connection: sqlite3.Connection, checkpoints: Sequence[TurnCheckpoint]) -> None:
    parts = [each.part for each in checkpoints if each.checkpoint.tokens.output_ids]
    if parts:
        connection.execute(
            f"INSERT OR REPLACE INTO checkpoint_parts VALUES {_rows_of(parts)}",
            [cell for row in parts for cell in row],
        )


def _rows_of(rows: Sequence[Sequence[Cell]]) -> str:
    """Returns placeholders for rows of the same length."""
    row = ", ".join("?" * len(rows[0]))
    return ", ".join([f"({row})"] * len(rows))


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
