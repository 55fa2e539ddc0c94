"""The client for programs without an event loop: the same calls, which block.

One background thread runs the event loop of all calls. Objects may be used from any thread, each
by one at a time. An interrupt of the waiting thread leaves the call running: cancel it, or go on
with the same iterator.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from antiphon.v1 import inference_pb2, model_pb2, session_pb2, types_pb2

from antiphon_client.channel import ClientOptions
from antiphon_client.client import Client
from antiphon_client.prompts import Says
from antiphon_client.session import Session
from antiphon_client.streams import GenerationStream
from antiphon_client.turn import Turn

T = TypeVar("T")

_END_WAIT_S = 1.0


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="antiphon-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Returns what `work` returns. The time limits are those of the calls in it."""
        return self.submit(work).result()

    def call(self, function: Callable[[], T]) -> T:
        """Returns what `function` returns on the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Starts `work` and returns its outcome to come."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Lets what is left come to its end, cancels what does not, and ends the thread."""
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, lasting = await asyncio.wait(others, timeout=_END_WAIT_S)
        for task in lasting:
            task.cancel()
        await asyncio.gather(*lasting, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class _Each(Iterator[T]):
    """Yields what an asynchronous iterator yields; goes on where an interrupt broke its wait.

    An interrupt may come after a value was asked for and before that is noted here. So values
    have numbers, and asking twice for one is asking once.
    """

    def __init__(self, loop: _Loop, values: AsyncIterator[T]) -> None:
        self._loop = loop
        self._values = values
        self._num_taken = 0
        # The loop's thread alone uses these.
        self._num_asked = 0
        self._asked: asyncio.Future[T] | None = None

    def __next__(self) -> T:
        try:
            value = self._loop.run(self._value(self._num_taken))
        except StopAsyncIteration:
            raise StopIteration from None
        self._num_taken += 1
        return value

    async def _value(self, index: int) -> T:
        if self._asked is None or index == self._num_asked:
            self._num_asked = index + 1
            self._asked = asyncio.ensure_future(self._following())
        # Cancelling one that asks must not cancel the value that another waits for.
        return await asyncio.shield(self._asked)

    async def _following(self) -> T:
        return await anext(self._values)


class SyncGeneration:
    """A streamed generation; see GenerationStream."""

    def __init__(self, loop: _Loop, stream: GenerationStream) -> None:
        self._loop = loop
        self._stream = stream

    @property
    def started(self) -> types_pb2.GenerationStarted | None:
        """What was known before the first token; None until then."""
        return self._stream.started

    @property
    def finished(self) -> Mapping[int, inference_pb2.OutputFinished]:
        """The ends of the outputs so far, by output index."""
        return self._stream.finished

    @property
    def completed(self) -> inference_pb2.GenerationCompleted | None:
        """Token counts and times; None until the end."""
        return self._stream.completed

    def __iter__(self) -> Iterator[inference_pb2.StreamGenerateResponse]:
        return _Each(self._loop, self._stream)

    def text(self, output_index: int = 0) -> Iterator[str]:
        """Yields the answer's pieces of one output."""
        return _Each(self._loop, self._stream.text(output_index))

    def cancel(self) -> None:
        """Stops the generation. Idempotent."""
        self._loop.call(self._stream.cancel)


class SyncTurn:
    """One turn of a session; see Turn."""

    def __init__(self, loop: _Loop, turn: Turn) -> None:
        self._loop = loop
        self._turn = turn

    @property
    def turn_id(self) -> str:
        """Its id in its session."""
        return self._turn.turn_id

    @property
    def started(self) -> types_pb2.GenerationStarted | None:
        """What was known before the first token; None until then."""
        return self._turn.started

    @property
    def completed(self) -> session_pb2.TurnCompleted | None:
        """How it ended; None until then."""
        return self._turn.completed

    def __iter__(self) -> Iterator[session_pb2.TurnEvent]:
        return _Each(self._loop, self._turn)

    def text(self) -> Iterator[str]:
        """Yields the answer's pieces."""
        return _Each(self._loop, self._turn.text())

    def answer(self) -> str:
        """Reads to the end and returns the rest of the answer."""
        return self._loop.run(self._turn.answer())

    def cancel(self, *, discard_partial: bool = False) -> None:
        """Asks for an early end, which the events then tell."""
        self._loop.run(self._turn.cancel(discard_partial=discard_partial))


class SyncSession:
    """A session over one stream; see Session."""

    def __init__(self, loop: _Loop, session: Session) -> None:
        self._loop = loop
        self._session = session

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """`sessions/{session}`."""
        return self._session.name

    @property
    def info(self) -> session_pb2.Session:
        """The session as the server told it last."""
        return self._session.info

    @property
    def attached(self) -> bool:
        """Whether the stream stands; a session whose stream ended can be resumed by its name."""
        return self._session.attached

    def open(self) -> None:
        """Attaches to the session, or creates it."""
        self._loop.run(self._session.open())

    def send(
        self,
        says: Says = (),
        config: types_pb2.GenerationConfig | None = None,
        *,
        timeout_s: float | None = None,
        turn_id: str = "",
    ) -> SyncTurn:
        """Starts a turn that adds `says` and asks for an answer."""
        sending = self._session.send(says, config, timeout_s=timeout_s, turn_id=turn_id)
        return SyncTurn(self._loop, self._loop.run(sending))

    def append(self, says: Says, *, turn_id: str = "") -> SyncTurn:
        """Adds items without asking for an answer."""
        appending = self._session.append(says, turn_id=turn_id)
        return SyncTurn(self._loop, self._loop.run(appending))

    def close(self) -> None:
        """Ends the stream; the session stays. Idempotent."""
        self._loop.run(self._session.close())


class SyncClient:
    """Talks to one server; see Client. Use it as a context manager, or close it."""

    def __init__(
        self, target: str = "127.0.0.1:50051", options: ClientOptions | None = None
    ) -> None:
        self._loop = _Loop()
        self._client = self._loop.call(lambda: Client(target, options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, every call that still runs, and the thread."""
        self._loop.run(self._client.close())
        self._loop.close()

    def generate(
        self,
        prompt: Says | types_pb2.Prompt,
        config: types_pb2.GenerationConfig | None = None,
        *,
        model: str = "",
        num_outputs: int | None = None,
        timeout_s: float | None = None,
    ) -> inference_pb2.GenerateResponse:
        """Returns all outputs. A prompt that is no Prompt stands for a conversation."""
        return self._loop.run(
            self._client.generate(
                prompt, config, model=model, num_outputs=num_outputs, timeout_s=timeout_s
            )
        )

    def stream_generate(
        self,
        prompt: Says | types_pb2.Prompt,
        config: types_pb2.GenerationConfig | None = None,
        *,
        model: str = "",
        num_outputs: int | None = None,
        timeout_s: float | None = None,
    ) -> SyncGeneration:
        """Starts a generation and returns its events."""

        def start() -> GenerationStream:
            return self._client.stream_generate(
                prompt, config, model=model, num_outputs=num_outputs, timeout_s=timeout_s
            )

        return SyncGeneration(self._loop, self._loop.call(start))

    def new_session(
        self,
        settings: session_pb2.Session | None = None,
        *,
        session_id: str = "",
        items: Says = (),
    ) -> SyncSession:
        """Returns a session that is created when it is entered."""
        session = self._client.new_session(settings, session_id=session_id, items=items)
        return SyncSession(self._loop, session)

    def resume_session(self, name: str) -> SyncSession:
        """Returns a session that is there; attached when it is entered."""
        return SyncSession(self._loop, self._client.resume_session(name))

    def get_session(self, name: str) -> session_pb2.Session:
        """Returns `sessions/{session}` as it stands."""
        return self._loop.run(self._client.sessions.get(name))

    def list_sessions(
        self, labels: Mapping[str, str] | None = None
    ) -> Iterator[session_pb2.Session]:
        """Yields the sessions that carry all these labels, latest creation first."""
        return _Each(self._loop, self._client.sessions.list(labels))

    def update_session(
        self, session: session_pb2.Session, fields: Iterable[str]
    ) -> session_pb2.Session:
        """Changes these fields to their values in `session`."""
        return self._loop.run(self._client.sessions.update(session, fields))

    def delete_session(self, name: str, *, etag: str = "") -> None:
        """Cancels a running turn and deletes the session."""
        self._loop.run(self._client.sessions.delete(name, etag=etag))

    def cancel_turn(self, turn_name: str, *, discard_partial: bool = False) -> session_pb2.Turn:
        """Stops `sessions/{session}/turns/{turn}` and returns it once it has ended."""
        return self._loop.run(
            self._client.sessions.cancel_turn(turn_name, discard_partial=discard_partial)
        )

    def list_turns(self, name: str, *, newest_first: bool = False) -> Iterator[session_pb2.Turn]:
        """Yields a session's turns."""
        return _Each(self._loop, self._client.sessions.list_turns(name, newest_first=newest_first))

    def list_models(self) -> Iterator[model_pb2.Model]:
        """Yields all that is served, by name."""
        return _Each(self._loop, self._client.list_models())

    def tokenize(self, text: str, *, model: str = "") -> list[int]:
        """Returns the text's token ids."""
        return self._loop.run(self._client.tokenize(text, model=model))
