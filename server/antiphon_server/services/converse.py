"""One stream on a session: how it opens, is attached, and begins."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from antiphon.v1.session_pb2 import ConverseRequest, ConverseResponse, SessionOpened
from antiphon.v1.types_pb2 import GoAway

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.converse_stream import ConverseStream, Requests, StreamTerms
from antiphon_server.services.opening import Opening, read_open
from antiphon_server.services.reader_watch import grace_of
from antiphon_server.sessions.names import parse_session_name
from antiphon_server.sessions.records import SessionKey
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.telemetry.call_trace import CallTrace


class Conversation:
    """A stream of frames, from `open` to its end."""

    def __init__(
        self,
        registry: SessionRegistry,
        tenant: str,
        *,
        call: CallTrace | None = None,
        writer: CallWriter | None = None,
    ) -> None:
        """Sets what it is about.

        Args:
            registry: Where its session is.
            tenant: Whose it is.
            call: What brings its turns, where anyone hears of that.
            writer: What writes to its caller beside `run`; None: nothing does.
        """
        self._registry = registry
        self._tenant = tenant
        self._call = call
        self._writer = writer
        self._stream: ConverseStream | None = None
        self._away: tuple[GoAway, AntiphonError] | None = None
        self._told = asyncio.Event()

    async def run(self, requests: Requests) -> AsyncGenerator[ConverseResponse, None]:
        """Yields the frames for the caller.

        Raises:
            AntiphonError: the stream ends with that.
        """
        first = await self._first_of(requests)
        if first is None:
            # Half-closed without a word: nothing was asked.
            return
        opening = read_open(first)
        key = await self._find_session(opening)
        async with AsyncExitStack() as held:
            session = await held.enter_async_context(self._registry.use(key))
            for turn_id in opening.cursors:
                await session.logs.check_known(turn_id)
            terms = StreamTerms(
                opening=opening,
                call=self._call,
                grace=grace_of(self._registry.surroundings),
                writer=self._writer,
            )
            stream = self._stream = ConverseStream(
                session, session.attach(opening.attachment), terms
            )
            held.callback(stream.close)
            if self._away is not None:
                stream.send_away(*self._away)
            shown = await session.present_with_residency()
            stream.begin(requests)
            yield ConverseResponse(opened=SessionOpened(session=shown))
            async with contextlib.aclosing(stream.frames()) as frames:
                async for frame in frames:
                    yield frame

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """See LongCall; a stream that has not been opened just ends."""
        self._away = (go_away, end)
        self._told.set()
        if self._stream is not None:
            self._stream.send_away(go_away, end)

    def cut_off(self, end: AntiphonError) -> None:
        """See LongCall; its turns go on."""
        if self._stream is not None:
            self._stream.cut_off(end)

    def close(self) -> None:
        """Lets go of the session, also where nobody tells `run` of its end. Idempotent."""
        if self._stream is not None:
            self._stream.close()

    async def _first_of(self, requests: Requests) -> ConverseRequest | None:
        """Returns the first frame; None: there is none. Raises AntiphonError where sent away."""

        async def read() -> ConverseRequest | None:
            return await anext(requests, None)

        first, told = asyncio.create_task(read()), asyncio.create_task(self._told.wait())
        try:
            await asyncio.wait({first, told}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done() and self._away is not None:
                raise self._away[1]
            return await first
        finally:
            first.cancel()
            told.cancel()

    async def _find_session(self, opening: Opening) -> SessionKey:
        """Returns the session that the first frame names or makes."""
        if opening.create is None:
            return parse_session_name(self._tenant, opening.name, "open.name")
        session = await self._registry.create(self._tenant, opening.create, path="open.create")
        return parse_session_name(self._tenant, session.name, "open.create")
