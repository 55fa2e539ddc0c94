"""The engine in a process of its own: started, watched, and started again when it dies."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.connection import Connection
from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_engine.api.frames import front_end_reader
from antiphon_engine.api.handle import (
    MAX_UNREAD_BYTES,
    EngineState,
    RequestStream,
)
from antiphon_engine.api.linked_process import LinkedProcess
from antiphon_engine.api.messages import (
    Answer,
    CloseSession,
    CoreStats,
    FlushPrefixCache,
    ForkSession,
    GenerationRequest,
    LoadFailed,
    LoadProgress,
    MatchPrefix,
    ReadStats,
    Ready,
    RequestFailed,
    RewindSession,
    Scope,
    Shutdown,
    StepNews,
    ToEngine,
    ToFrontEnd,
)
from antiphon_engine.api.open_streams import OpenStreams
from antiphon_engine.api.process import (
    EngineStart,
    EngineSurroundings,
    engine_command,
    spawn_engine,
)
from antiphon_engine.api.silence import Silence, cpu_clock_of

_log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
_HEARTBEAT_ID = 0
_ANSWER_LIMIT_S = 10.0
_LOAD_SILENCE_LIMIT_S = 900.0
"""The longest stage of loading: it tells its progress, but some stages have one step."""
_SHUTDOWN_GRACE_S = 3.0
_MAX_RESTART_DELAY_S = 30.0
_STEADY_S = 60.0
"""An engine that served this long before it died is started again without growing delay."""
_RETRY_DELAY_S = 2.0
_MAX_UNSENT_BYTES = 64 << 20

OnProgress = Callable[[LoadProgress], None]


class EngineLink:
    """EngineHandle over a socket to an engine process. Used on one event loop.

    A process that gives no sign of life for `stall_limit_s` is STALLED and gets no new requests;
    after as long again it is killed, so that every request ends.
    """

    def __init__(
        self, start: EngineStart, command: Sequence[str], on_progress: OnProgress | None
    ) -> None:
        self._start = start
        self._config = start.config
        self._command = command
        self._on_progress = on_progress
        self._state = EngineState.STARTING
        self._facts: Ready | None = None
        self._callbacks: list[Callable[[EngineState], None]] = []
        self._connection: Connection[ToFrontEnd] | None = None
        self._process_id: int | None = None
        self._streams = OpenStreams()
        self._query_ids = itertools.count(_HEARTBEAT_ID + 1)
        self._queries: dict[int, asyncio.Future[int | CoreStats]] = {}
        self._heartbeat_sent = False
        self._loaded: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._supervisor: asyncio.Task[None] | None = None
        self._first_start: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        checkpoint: Path,
        *,
        command: Sequence[str] | None = None,
        on_progress: OnProgress | None = None,
        surroundings: EngineSurroundings | None = None,
    ) -> "EngineLink":
        """Starts an engine process and waits until its model is loaded.

        Args:
            config: How it runs.
            checkpoint: The directory of the model.
            command: Runs the process; default: this Python's engine.
            on_progress: Told how far loading is, on the event loop; later starts too.
            surroundings: Of the process; None: it logs by default, and keeps nothing.

        Raises:
            StartupError: it can't start.
        """
        start = EngineStart(
            config=config,
            checkpoint=str(checkpoint),
            surroundings=surroundings or EngineSurroundings(),
        )
        link = cls(start, command or engine_command(), on_progress)
        supervisor = asyncio.create_task(link._supervise(), name="engine supervisor")
        link._supervisor = supervisor
        try:
            await asyncio.wait({link._first_start, supervisor}, return_when=asyncio.FIRST_COMPLETED)
            await (link._first_start if link._first_start.done() else supervisor)
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def state(self) -> EngineState:
        """See EngineHandle."""
        return self._state

    @property
    def facts(self) -> Ready | None:
        """See EngineHandle."""
        return self._facts

    @property
    def process_id(self) -> int | None:
        """The running engine process, for those who watch it; None where there is none."""
        return self._process_id

    def on_state_change(self, callback: Callable[[EngineState], None]) -> None:
        """See EngineHandle."""
        self._callbacks.append(callback)

    def submit(
        self, request: GenerationRequest, *, max_unread_bytes: int = MAX_UNREAD_BYTES
    ) -> RequestStream:
        """See EngineHandle. Raises OVERLOADED too, if the engine doesn't take requests."""
        connection = self._ready_connection()
        if connection.unsent_bytes > _MAX_UNSENT_BYTES:
            raise AntiphonError(
                ErrorReason.OVERLOADED,
                "The engine is behind with taking requests; retry later.",
                retry_delay_s=_RETRY_DELAY_S,
            )
        return self._streams.submit(
            request, max_unread_bytes=max_unread_bytes, send=connection.send
        )

    async def stats(self) -> CoreStats:
        """See EngineHandle."""
        answer = await self._ask(lambda query_id: ReadStats(query_id=query_id))
        assert isinstance(answer, CoreStats)
        return answer

    async def flush_prefix_cache(self) -> int:
        """See EngineHandle."""
        answer = await self._ask(lambda query_id: FlushPrefixCache(query_id=query_id))
        assert isinstance(answer, int)
        return answer

    async def match_prefix(self, scope: Scope, tokens: bytes) -> int:
        """See EngineHandle."""
        answer = await self._ask(
            lambda query_id: MatchPrefix(query_id=query_id, scope=scope, tokens=tokens)
        )
        assert isinstance(answer, int)
        return answer

    def close_session(self, session: int) -> None:
        """See EngineHandle."""
        self._hint(CloseSession(session=session))

    def fork_session(self, session: int, new_session: int) -> None:
        """See EngineHandle."""
        self._hint(ForkSession(session=session, new_session=new_session))

    def rewind_session(self, session: int, num_tokens: int) -> None:
        """See EngineHandle."""
        self._hint(RewindSession(session=session, num_tokens=num_tokens))

    async def close(self) -> None:
        """See EngineHandle."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})

    # Asking.

    def _ready_connection(self) -> Connection[ToFrontEnd]:
        if self._state is not EngineState.READY or self._connection is None:
            raise _engine_down(f"The engine is {self._state.value}; retry later.")
        return self._connection

    async def _ask(self, make: Callable[[int], ToEngine]) -> int | CoreStats:
        connection = self._ready_connection()
        query_id = next(self._query_ids)
        future: asyncio.Future[int | CoreStats] = asyncio.get_running_loop().create_future()
        self._queries[query_id] = future
        connection.send(make(query_id))
        try:
            return await asyncio.wait_for(future, _ANSWER_LIMIT_S)
        except TimeoutError:
            raise _engine_down(
                f"The engine has not answered within {_ANSWER_LIMIT_S:g} s; retry later."
            ) from None
        finally:
            del self._queries[query_id]

    def _hint(self, message: CloseSession | ForkSession | RewindSession) -> None:
        connection = self._connection
        if connection is not None and connection.unsent_bytes <= _MAX_UNSENT_BYTES:
            connection.send(message)

    # What comes from the engine.

    def _take(self, message: ToFrontEnd) -> None:
        match message:
            case StepNews():
                self._streams.take_step(message)
            case Answer():
                self._take_answer(message)
            case RequestFailed():
                self._streams.fail(message.request_id, _request_error(message))
            case LoadProgress():
                if self._on_progress is not None:
                    self._on_progress(message)
            case Ready():
                self._facts = message
                self._loaded.set_result("")
            case LoadFailed():
                self._loaded.set_result(message.message)

    def _take_answer(self, answer: Answer) -> None:
        if answer.query_id == _HEARTBEAT_ID:
            self._heartbeat_sent = False
        elif (future := self._queries.get(answer.query_id)) and not future.done():
            future.set_result(answer.value)

    # The process's life.

    async def _supervise(self) -> None:
        """Starts the process again and again. Ends when the first start fails or on cancel."""
        loop = asyncio.get_running_loop()
        delay_s = self._config.restart_delay_s
        try:
            while True:
                started_s = loop.time()
                problem = await self._run_process()
                if not self._first_start.done():
                    self._first_start.set_exception(StartupError(problem))
                    return
                if loop.time() - started_s > _STEADY_S:
                    delay_s = self._config.restart_delay_s
                _log.error("%s; it is started again in %g s", problem, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MAX_RESTART_DELAY_S)
        finally:
            self._set_state(EngineState.DOWN)

    async def _run_process(self) -> str:
        """Runs one process until it is of no more use and returns, in one line, why."""
        self._set_state(EngineState.STARTING)
        self._loaded = asyncio.get_running_loop().create_future()
        try:
            process = spawn_engine(self._command, self._start)
        except StartupError as error:
            self._set_state(EngineState.DOWN)
            return str(error)
        self._process_id = process.process.pid
        connection: Connection[ToFrontEnd] | None = None
        grace_s = 0.0
        try:
            connection = await Connection.open(
                process.link, front_end_reader(), self._take, self._streams.announce
            )
            problem = await self._load(process, connection)
            if problem:
                return problem
            self._connection = connection
            self._set_state(EngineState.READY)
            if not self._first_start.done():
                self._first_start.set_result(None)
            return await self._watch(process, connection)
        except asyncio.CancelledError:
            grace_s = _SHUTDOWN_GRACE_S
            raise
        finally:
            await self._end(process, connection, grace_s)

    async def _load(self, process: LinkedProcess, connection: Connection[ToFrontEnd]) -> str:
        """Waits until the model is loaded; returns what went wrong, or nothing."""
        silence = _silence_of(process, connection, tick_s=_HEARTBEAT_S)
        while not self._loaded.done():
            if silence.length_s > _LOAD_SILENCE_LIMIT_S:
                return f"The engine has not got on with loading for {silence.length_s:.0f} s"
            await silence.tick(self._loaded)
            if _is_gone(process, connection) and not self._loaded.done():
                return f"The engine ended while it loaded the model ({await _ending(process)})"
        return self._loaded.result()

    async def _watch(self, process: LinkedProcess, connection: Connection[ToFrontEnd]) -> str:
        """Waits until the process is lost or stalled for good, and says which."""
        limit_s = self._config.stall_limit_s
        silence = _silence_of(process, connection, tick_s=min(_HEARTBEAT_S, limit_s / 4))
        self._heartbeat_sent = False
        while True:
            if not self._heartbeat_sent:
                self._heartbeat_sent = True
                connection.send(ReadStats(query_id=_HEARTBEAT_ID))
            await silence.tick()
            if _is_gone(process, connection):
                return f"The engine ended ({await _ending(process)})"
            if silence.length_s > 2 * limit_s:
                return f"The engine has given no sign of life for {silence.length_s:.1f} s"
            stalled = silence.length_s > limit_s
            self._set_state(EngineState.STALLED if stalled else EngineState.READY)

    async def _end(
        self, process: LinkedProcess, connection: Connection[ToFrontEnd] | None, grace_s: float
    ) -> None:
        """Fails what still runs and ends the process."""
        self._connection = None
        self._set_state(EngineState.DOWN)
        error_text = "The engine has ended before the request did; retry later."
        self._streams.fail_all(_engine_down(error_text))
        for future in self._queries.values():
            if not future.done():
                future.set_exception(_engine_down(error_text))
        if connection is None:
            process.link.close()
        elif grace_s:
            connection.send(Shutdown())
        await process.end(grace_s)
        self._process_id = None
        if connection is not None:
            connection.close()

    def _set_state(self, state: EngineState) -> None:
        if state is not self._state:
            self._state = state
            for callback in self._callbacks:
                callback(state)


def _silence_of(
    process: LinkedProcess, connection: Connection[ToFrontEnd], *, tick_s: float
) -> Silence:
    return Silence(connection, tick_s=tick_s, engine_cpu_s=cpu_clock_of(process.process.pid))


def _is_gone(process: LinkedProcess, connection: Connection[ToFrontEnd]) -> bool:
    return connection.lost.done() or process.process.returncode is not None


async def _ending(process: LinkedProcess) -> str:
    """Returns how a process ended that has closed its link, once it has."""
    try:
        status = await asyncio.wait_for(process.process.wait(), _HEARTBEAT_S)
    except TimeoutError:
        return "it still runs"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def _engine_down(message: str) -> AntiphonError:
    return AntiphonError(ErrorReason.ENGINE_DOWN, message, retry_delay_s=_RETRY_DELAY_S)


def _request_error(failed: RequestFailed) -> AntiphonError:
    reason = ErrorReason(failed.reason)
    return AntiphonError(
        reason,
        failed.message,
        metadata=failed.metadata,
        retry_delay_s=_RETRY_DELAY_S if reason is ErrorReason.OVERLOADED else None,
    )
