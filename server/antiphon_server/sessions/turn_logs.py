"""Where the events of a session's turns are: in a turn that runs, in memory, or in the store."""

from dataclasses import replace

from antiphon.v1.session_pb2 import Turn, TurnEvent

from antiphon_server.convert import to_prompt_parts
from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.failures import mark_stopped, server_stopped
from antiphon_server.sessions.history import prompt_of
from antiphon_server.sessions.ledger import Ledger
from antiphon_server.sessions.names import turn_not_found
from antiphon_server.sessions.records import QUEUED, RUNNING, SessionKey, TurnRow, token_array
from antiphon_server.sessions.replay import replayed_events
from antiphon_server.sessions.session_rows import etag_of
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn_queue import TurnQueue
from antiphon_server.status import to_failure


class TurnLogs:
    """Finds the turns of one session, as they stand and with their events."""

    def __init__(self, ledger: Ledger, queue: TurnQueue, surroundings: Surroundings) -> None:
        self._ledger = ledger
        self._queue = queue
        self._surroundings = surroundings

    async def check_known(self, turn_id: str) -> None:
        """Checks that there is a turn. Raises AntiphonError, TURN_NOT_FOUND."""
        if self._queue.find(turn_id) is None and self._kept(turn_id) is None:
            await self._read_row(turn_id)

    async def find(self, turn_id: str) -> EventLog:
        """Returns a turn's log. Raises AntiphonError, TURN_NOT_FOUND."""
        if live := self._queue.find(turn_id):
            return live.log
        return self._kept(turn_id) or await self.of_row(await self._read_row(turn_id))

    async def of_row(self, row: TurnRow) -> EventLog:
        """Returns the log of a turn that was read from the store."""
        if live := self._queue.find(row.turn_id):
            return live.log
        if log := self._kept(row.turn_id):
            return log
        turn = await self.as_it_stands(row)
        return EventLog.restore(row.turn_id, turn.epoch, await self._replay(row, turn))

    async def read_turn(self, turn_id: str) -> Turn:
        """Returns a turn as it stands. Raises AntiphonError, TURN_NOT_FOUND."""
        if live := self._queue.find(turn_id):
            return live.snapshot()
        return await self.as_it_stands(await self._read_row(turn_id))

    async def as_it_stands(self, row: TurnRow) -> Turn:
        """Returns a turn that was read from the store, with what has happened since."""
        if live := self._queue.find(row.turn_id):
            return live.snapshot()
        if row.turn.state in (QUEUED, RUNNING):
            # It has ended while the row was read, or else its end could not be written.
            row = await self._surroundings.store.read_turn(self._key, row.turn_id) or row
        if row.turn.state in (QUEUED, RUNNING):
            mark_stopped(row.turn, to_failure(server_stopped()))
        return row.turn

    @property
    def _key(self) -> SessionKey:
        return self._ledger.row.key

    def _kept(self, turn_id: str) -> EventLog | None:
        return self._surroundings.ended_logs.find(self._key, turn_id)

    async def _read_row(self, turn_id: str) -> TurnRow:
        row = await self._surroundings.store.read_turn(self._key, turn_id)
        if row is None:
            raise turn_not_found(self._key, turn_id)
        return row

    async def _replay(self, row: TurnRow, turn: Turn) -> list[TurnEvent]:
        prompt_ids = token_array()
        kept = turn.state != Turn.STATE_FAILED and not self._ledger.history.rerenders
        if turn.config.output.prompt_token_ids and kept:
            earlier = await self._surroundings.store.read_turns_before(self._key, row)
            prompt_ids = await self._surroundings.offload.run(prompt_of, row, earlier)
        return await self._surroundings.offload.run(
            replayed_events,
            turn,
            etag=etag_of(replace(self._ledger.row, version=row.version)),
            prompt=list(to_prompt_parts(prompt_ids)),
        )
