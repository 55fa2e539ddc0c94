"""One turn's events for one call, from where its caller stands to the turn's end."""

import asyncio
from collections.abc import AsyncGenerator

from antiphon.v1.session_pb2 import TurnEvent
from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.acknowledgements import Acknowledgements
from antiphon_server.services.converse_stream import slow_consumer
from antiphon_server.services.direct_telling import DirectTelling, Telling, event_alone
from antiphon_server.services.reader_watch import Grace, ReaderWatch
from antiphon_server.sessions.event_log import EventLog, ReaderSpec
from antiphon_server.sessions.session import LiveSession


class TurnEvents:
    """The events of a turn on their way to one caller. Used on one event loop."""

    def __init__(
        self,
        session: LiveSession,
        log: EventLog,
        spec: ReaderSpec,
        *,
        grace: Grace,
        writer: CallWriter | None = None,
    ) -> None:
        """Begins to read; close it.

        Args:
            session: The turn's.
            log: The turn's.
            spec: How the caller reads.
            grace: How long it may take nothing.
            writer: What writes beside the task that reads `events`; None: nothing does.
        """
        self._session = session
        self._grace = grace
        self._watch = ReaderWatch(grace, self._lose)
        wake = asyncio.Event()
        telling = Telling(
            wake=wake,
            acks=Acknowledgements(0),
            watch=self._watch,
            new_message=event_alone,
        )
        self._direct = DirectTelling(writer, telling)
        self._reader = log.open_reader(wake, spec, take_news=self._direct.tell)
        self._end: AntiphonError | None = None
        self._cut: AntiphonError | None = None
        self._closed = False

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Yields them up to the terminal one; may be called once.

        Raises:
            AntiphonError: SLOW_CONSUMER.
        """
        reader, has_told = self._reader, False
        self._watch.start()
        while not reader.finished:
            reader.wake.clear()
            while event := reader.read():
                self._watch.begin_write()
                yield event
                has_told = True
                self._watch.end_write()
                if self._end is not None:
                    raise self._end
            if reader.finished:
                return
            if self._cut is not None:
                raise self._cut
            # The first message is the handler's own.
            await (self._direct.wait_for_news() if has_told else reader.wake.wait())
            if self._end is not None:
                raise self._end

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Nothing: it ends with its turn, and can't tell its caller anything else."""

    def cut_off(self, end: AntiphonError) -> None:
        """Ends the call behind what there is to tell; the turn goes on."""
        self._cut = end
        self._reader.wake.set()

    def close(self) -> None:
        """Lets go of the turn. Idempotent; never waits."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._direct.close()
        self._reader.close()
        if self._reader.drives and not self._reader.finished:
            self._session.note_leaving(self._reader.turn_id)

    def _lose(self) -> None:
        """Gives the call up: its reader has been away too long."""
        reader = self._reader
        self._end = slow_consumer(
            reader.turn_id, reader.log.epoch, reader.settled, grace_s=self._grace.grace_s
        )
        self.close()
        reader.wake.set()
