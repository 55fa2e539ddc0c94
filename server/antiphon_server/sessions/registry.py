"""All sessions of a server: finds, loads, makes, lists, expires and lets go of them."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    ForkSessionRequest,
    RewindSessionRequest,
    Session,
    UpdateSessionRequest,
)
from antiphon.v1.types_pb2 import GenerationConfig
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.tenancy import Tenancy, unlimited_tenancy
from antiphon_server.constraints.enforcement import ToolOffer, constraint_of
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.sessions.cache_hints import tell_closed, tell_forked
from antiphon_server.sessions.changes import Changes
from antiphon_server.sessions.ended_logs import EndedLogs
from antiphon_server.sessions.failures import server_stopped
from antiphon_server.sessions.history import load_history
from antiphon_server.sessions.ledger import Ledger
from antiphon_server.sessions.limits import Clock, Draws, SessionLimits
from antiphon_server.sessions.names import parse_session_name, session_not_found
from antiphon_server.sessions.new_sessions import (
    forked_session,
    keep_new,
    new_session,
    receipt_of,
)
from antiphon_server.sessions.records import NewSession, Receipt, SessionKey, SessionRow
from antiphon_server.sessions.recovery import Recovery
from antiphon_server.sessions.session import LiveSession
from antiphon_server.sessions.session_requests import (
    Checker,
    check_fork,
    check_rewind,
    read_update,
)
from antiphon_server.sessions.session_rows import present
from antiphon_server.sessions.store import SessionStore
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.sweeper import Sweeper
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.telemetry.telemetry import Telemetry
from antiphon_server.times import NS_PER_S
from antiphon_server.validation_fields import join_path


class SessionRegistry:
    """The sessions of a server. Used on one event loop."""

    def __init__(  # noqa: PLR0913 - a composition root's parts, all by name
        self,
        *,
        store: SessionStore,
        models: Mapping[str, ServedModel],
        generators: Mapping[str, Generator],
        offload: Offload,
        limits: SessionLimits,
        clock: Clock | None = None,
        draws: Draws | None = None,
        tenancy: Tenancy | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Sets what all sessions share; whoever gives the store closes it, behind this.

        Args:
            store: Where they are kept.
            models: By name.
            generators: By the model's name.
            offload: Where CPU work runs.
            limits: How much they may hold.
            clock: The clocks; None: the system's.
            draws: Ids and seeds; None: the system's randomness.
            tenancy: What keeps tenants apart; None: nobody has quotas.
            telemetry: Is told of every turn; None: nobody is.
        """
        clock = clock or Clock()
        self._surroundings: Final = Surroundings(
            store=store,
            models=models,
            generators=generators,
            offload=offload,
            ended_logs=EndedLogs(
                max_bytes=limits.max_ended_log_bytes,
                grace_s=limits.log_grace_s,
                clock_ns=clock.monotonic_ns,
            ),
            limits=limits,
            clock=clock,
            draws=draws or Draws(),
            tenancy=tenancy or unlimited_tenancy(),
            telemetry=telemetry or Telemetry(),
        )
        self._loaded: OrderedDict[SessionKey, LiveSession] = OrderedDict()
        self._loading: dict[SessionKey, asyncio.Task[LiveSession]] = {}
        self._sweeper = Sweeper(self._surroundings, self.expire)
        self._changes = Changes()
        self._num_sessions = 0
        self._drain: tuple[AntiphonError, Duration] | None = None

    @property
    def num_sessions(self) -> int:
        """How many there are, over all tenants."""
        return self._num_sessions

    @property
    def num_live_turns(self) -> int:
        """Turns that have not ended."""
        return len(self._live_turns())

    @property
    def num_queued_turns(self) -> int:
        """Those of them that wait behind another of their session."""
        sizes = (len(session.live_turns) for session in self._loaded.values())
        return sum(size - 1 for size in sizes if size)

    @property
    def surroundings(self) -> Surroundings:
        """What all sessions share."""
        return self._surroundings

    async def start(self) -> None:
        """Takes up the turns that an earlier server left, and begins to look for expiry."""
        await Recovery(self._surroundings, self._load).run()
        self._num_sessions = await self._surroundings.store.count_sessions()
        self._sweeper.start()

    def drain(self, *, time_left_s: float) -> None:
        """Refuses new turns and sessions from now on, and asks streams to end; turns go on."""
        error = AntiphonError(
            ErrorReason.DRAINING,
            "The server is shutting down and takes no new turns; try again elsewhere or later.",
            retry_delay_s=1.0,
        )
        time_left = Duration(nanos=0)
        time_left.FromMilliseconds(int(time_left_s * 1000))
        self._drain = (error, time_left)
        for session in self._loaded.values():
            session.drain(error, time_left)

    async def wait_turns(self, limit_s: float | None) -> int:
        """Waits until no turn is left, also of those that no stream watches.

        Returns:
            How many are left after `limit_s`, if there is a limit.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while turns := self._live_turns():
                    await turns[0].ended.wait()
                    await asyncio.sleep(0)
        return len(self._live_turns())

    def cancel_turns(self) -> int:
        """Stops all turns, whose output is kept; returns how many there are."""
        turns = [
            (session, turn) for session in self._loaded.values() for turn in session.live_turns
        ]
        for session, turn in turns:
            session.cancel_live(turn)
        return len(turns)

    async def close(self) -> None:
        """Stops all work, leaves turns to the next server and lets go of all sessions."""
        await self._sweeper.close()
        error = server_stopped()
        sessions = list(self._loaded.values())
        await asyncio.gather(*(session.stop(error) for session in sessions))
        await self._changes.wait()
        self._loaded.clear()
        self._surroundings.ended_logs.close()

    async def create(
        self, tenant: str, request: CreateSessionRequest, *, path: str = ""
    ) -> Session:
        """Creates a session. Raises AntiphonError, whose fields stand below `path`."""
        if self._drain is not None:
            raise self._drain[0]
        if answer := await self._find_answer(
            receipt_of(self._surroundings, tenant, request, Session())
        ):
            return answer
        new = await new_session(self._surroundings, tenant, request, path=path)
        model = find_model(self._surroundings.models, new.row.session.model)
        defaults_path = join_path(path, "session.defaults")
        await constraint_of(request.session.defaults, model, path=defaults_path)
        await _check_schemas(request.session, model, path=join_path(path, "session"))
        earlier = await self._changes.carry_out(self._keep(new))
        return earlier or present(new.row, active=False)

    async def fork(self, tenant: str, request: ForkSessionRequest) -> Session:
        """Makes a session that shares a history; once begun it goes on. Raises AntiphonError."""
        if self._drain is not None:
            raise self._drain[0]
        check_fork(request)
        return await self._changes.carry_out(self._fork(tenant, request))

    async def rewind(self, tenant: str, request: RewindSessionRequest) -> Session:
        """Takes a session back; once begun it goes on to its end. Raises AntiphonError."""
        check_rewind(request)
        return await self._changes.carry_out(self._rewind(tenant, request))

    async def update(self, tenant: str, request: UpdateSessionRequest) -> Session:
        """Changes a session; once begun it goes on to its end. Raises AntiphonError."""
        return await self._changes.carry_out(self._update(tenant, request))

    async def delete(self, key: SessionKey, etag: str) -> None:
        """Deletes a session; once begun it goes on to its end. Raises AntiphonError."""
        await self._changes.carry_out(self._delete(key, etag))

    def is_active(self, key: SessionKey) -> bool:
        """Whether a session has turns that have not ended."""
        session = self._loaded.get(key)
        return session is not None and session.active

    @contextlib.asynccontextmanager
    async def use(self, key: SessionKey) -> AsyncIterator[LiveSession]:
        """Holds a session in memory.

        Raises:
            AntiphonError: SESSION_NOT_FOUND or SESSION_EXPIRED.
        """
        session = await self._find(key)
        session.num_uses += 1
        try:
            yield session
        finally:
            session.num_uses -= 1
            self._unload_some()

    async def expire(self, row: SessionRow) -> None:
        """Deletes a session whose time is over, unless it has work or a change has saved it."""
        await self._changes.carry_out(self._expire(row))

    async def _keep(self, new: NewSession) -> Session | None:
        """Keeps a new session, also under the id of one whose time is over."""
        try:
            earlier = await keep_new(self._surroundings, new)
        except AntiphonError as error:
            row = await self._surroundings.store.read_session(new.row.key)
            if error.reason is not ErrorReason.ID_TAKEN or row is None:
                raise
            await self._expire(row)
            earlier = await keep_new(self._surroundings, new)
        self._num_sessions += earlier is None
        return earlier

    async def _fork(self, tenant: str, request: ForkSessionRequest) -> Session:
        receipt = receipt_of(self._surroundings, tenant, request, Session())
        if answer := await self._find_answer(receipt):
            return answer
        async with self.use(parse_session_name(tenant, request.name, "name")) as parent:
            with parent.told_as_gone():
                async with parent.ledger.lock:
                    # No rewind comes between the choice of the turn and the write.
                    parent.check_open()
                    new = await forked_session(self._surroundings, parent.ledger.row, request)
                    earlier = await self._keep(new)
            if earlier is None and new.fork is not None:
                with contextlib.suppress(AntiphonError):
                    await tell_forked(
                        self._surroundings, parent.ledger.row, new.row.key, new.fork.position
                    )
        return earlier or present(new.row, active=False)

    async def _rewind(self, tenant: str, request: RewindSessionRequest) -> Session:
        receipt = receipt_of(self._surroundings, tenant, request, Session())
        if answer := await self._find_answer(receipt):
            return answer
        async with self.use(parse_session_name(tenant, request.name, "name")) as session:
            return await session.rewind(request, receipt)

    async def _find_answer(self, receipt: Receipt | None) -> Session | None:
        """Returns what a request was answered before, also if its session has gone since."""
        return await self._surroundings.store.find_answer(receipt) if receipt else None

    async def _update(self, tenant: str, request: UpdateSessionRequest) -> Session:
        receipt = receipt_of(self._surroundings, tenant, request, Session())
        if answer := await self._find_answer(receipt):
            return answer
        key = parse_session_name(tenant, request.session.name, "session.name")
        async with self.use(key) as session:
            model = find_model(self._surroundings.models, session.present().model)
            checker = Checker(model=model, now_ns=self._surroundings.clock.wall_ns())
            change = read_update(request, checker)
            if "defaults" in request.update_mask.paths:
                defaults = request.session.defaults
                await constraint_of(defaults, model, path="session.defaults")
            if "tools" in request.update_mask.paths:
                await _check_schemas(request.session, model, path="session")
            return await session.update(
                change,
                etag=request.session.etag,
                receipt=receipt,
            )

    async def _delete(self, key: SessionKey, etag: str) -> None:
        async with self.use(key) as session:
            await session.delete(etag)
            self._surroundings.ended_logs.drop_session(key)
            self._loaded.pop(key, None)
            self._num_sessions -= 1

    async def _expire(self, row: SessionRow) -> None:
        session = self._loaded.get(row.key)
        if session is not None:
            row = session.ledger.row
            if session.active:
                return
        if row.expire_ns is None or row.expire_ns > self._surroundings.clock.wall_ns():
            return
        if session is not None:
            session.tell_gone(_expired(row.key, row.expire_ns))
            self._loaded.pop(row.key, None)
        self._surroundings.ended_logs.drop_session(row.key)
        if await self._surroundings.store.expire_session(row.key, row.expire_ns):
            self._num_sessions -= 1
            tell_closed(self._surroundings, row)

    def _live_turns(self) -> list[LiveTurn]:
        return [turn for session in self._loaded.values() for turn in session.live_turns]

    async def _find(self, key: SessionKey) -> LiveSession:
        """Returns a session, from memory or the store. At most one call loads it."""
        while (session := self._loaded.get(key)) is None:
            # Others that waited for it may have used it and let go of it again.
            loading = self._loading.get(key)
            if loading is None:
                loading = asyncio.create_task(self._load(key))
                self._loading[key] = loading
                loading.add_done_callback(partial(self._note_loaded, key))
            await asyncio.shield(loading)
        self._loaded.move_to_end(key)
        expire_ns = session.ledger.row.expire_ns
        now_ns = self._surroundings.clock.wall_ns()
        if expire_ns is not None and expire_ns <= now_ns and not session.active:
            await self.expire(session.ledger.row)
            raise _expired(key, expire_ns)
        return session

    def _note_loaded(self, key: SessionKey, loading: "asyncio.Task[LiveSession]") -> None:
        del self._loading[key]
        if not loading.cancelled():
            loading.exception()  # Marks it as seen: all who waited for it may have gone.

    async def _load(self, key: SessionKey) -> LiveSession:
        store = self._surroundings.store
        row = await store.read_session(key)
        if row is None:
            expire_ns = await store.read_expired(key)
            raise session_not_found(key) if expire_ns is None else _expired(key, expire_ns)
        rows = await store.read_history(key)
        history = await self._surroundings.offload.run(
            load_history, row.session.history_policy, rows
        )
        last_position = await store.read_last_position(key)
        ledger = Ledger(row, history, self._surroundings, last_position=last_position)
        session = LiveSession(ledger, self._surroundings)
        if self._drain is not None:
            session.drain(*self._drain)
        self._loaded[key] = session
        return session

    def _unload_some(self) -> None:
        """Lets go of idle sessions beyond the bound, the longest unused first."""
        excess = len(self._loaded) - self._surroundings.limits.max_loaded
        if excess > 0:
            idle = [key for key, session in self._loaded.items() if session.idle]
            for key in idle[:excess]:
                del self._loaded[key]


def _expired(key: SessionKey, expire_ns: int) -> AntiphonError:
    when = datetime.fromtimestamp(expire_ns / NS_PER_S, UTC).isoformat(timespec="milliseconds")
    return AntiphonError(
        ErrorReason.SESSION_EXPIRED,
        f"The session {key.name} expired at {when}; give sessions a longer idle_ttl to keep them.",
        metadata={"session": key.name, "expire_time": when},
    )


async def _check_schemas(session: Session, model: ServedModel, *, path: str) -> None:
    """Checks that calls of a session's tools can be held to their schemas. Raises AntiphonError."""
    offer = ToolOffer(tools=session.tools, path=path)
    await constraint_of(GenerationConfig(), model, path=path, offer=offer)
