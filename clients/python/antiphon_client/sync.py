"""The client for programs without an event loop: the same calls, which block.

One background thread runs the event loop of all calls. Objects may be used from any thread, each
by one at a time. An interrupt of the waiting thread leaves the call running: cancel it, or go on
with the same iterator.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from antiphon.v1 import inference_pb2, model_pb2, session_pb2, types_pb2

from antiphon_client.blocking import CallLoop, Each
from antiphon_client.channel import ClientOptions
from antiphon_client.client import Client
from antiphon_client.link import Watcher
from antiphon_client.multiplex import SharedCall
from antiphon_client.prompts import Says
from antiphon_client.session import Session
from antiphon_client.streams import GenerationStream
from antiphon_client.sync_sessions import SyncSession, SyncSessionCalls, SyncSessionWatch


class SyncGeneration:
    """A streamed generation; see GenerationStream."""

    def __init__(self, loop: CallLoop, stream: GenerationStream) -> None:
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
        return Each(self._loop, self._stream)

    def text(self, output_index: int = 0) -> Iterator[str]:
        """Yields the answer's pieces of one output."""
        return Each(self._loop, self._stream.text(output_index))

    def cancel(self) -> None:
        """Stops the generation. Idempotent."""
        self._loop.call(self._stream.cancel)


class SyncSharedCall:
    """One call that carries many generations; see SharedCall. Use it as a context manager."""

    def __init__(self, loop: CallLoop, shared: SharedCall) -> None:
        self._loop = loop
        self._shared = shared

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
    def go_away(self) -> types_pb2.GoAway | None:
        """Set where the server is about to end the call: start what is new on another."""
        return self._shared.go_away

    def open(self) -> None:
        """Begins the call."""
        self._loop.run(self._shared.open())

    def generate(
        self,
        request: inference_pb2.GenerateRequest,
        *,
        cache_scope: str = "",
        timeout_s: float | None = None,
    ) -> SyncGeneration:
        """Starts a generation and returns its events."""
        starting = self._shared.generate(request, cache_scope=cache_scope, timeout_s=timeout_s)
        return SyncGeneration(self._loop, self._loop.run(starting))

    def close(self) -> None:
        """Ends the call and all that still run on it. Idempotent."""
        self._loop.run(self._shared.close())


class SyncClient:
    """Talks to one server; see Client. Use it as a context manager, or close it.

    Attributes:
        sessions: The calls on conversations that live on the server.
    """

    def __init__(
        self, target: str = "127.0.0.1:50051", options: ClientOptions | None = None
    ) -> None:
        self._loop = CallLoop()
        try:
            self._client = self._loop.call(lambda: Client(target, options))
        except ValueError:
            self._loop.close()
            raise
        self.sessions = SyncSessionCalls(self._loop, self._client.sessions)

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

    def shared_call(self) -> SyncSharedCall:
        """Returns a call that carries many generations; it begins when it is entered."""
        return SyncSharedCall(self._loop, self._loop.call(self._client.shared_call))

    def new_session(
        self,
        settings: session_pb2.Session | None = None,
        *,
        session_id: str = "",
        items: Says = (),
        watcher: Watcher | None = None,
    ) -> SyncSession:
        """Returns a session that is created when it is entered.

        `watcher` is told of every interruption and its end, on the thread of the event loop.
        """

        def make() -> Session:
            return self._client.new_session(
                settings, session_id=session_id, items=items, watcher=watcher
            )

        return SyncSession(self._loop, self._loop.call(make))

    def resume_session(
        self, name: str, *, take_over: bool = False, watcher: Watcher | None = None
    ) -> SyncSession:
        """Returns a session that is there; attached when it is entered."""

        def make() -> Session:
            return self._client.resume_session(name, take_over=take_over, watcher=watcher)

        return SyncSession(self._loop, self._loop.call(make))

    def watch_session(self, name: str) -> SyncSessionWatch:
        """Returns a watch on `sessions/{session}`, which begins when it is entered."""
        watch = self._loop.call(lambda: self._client.watch_session(name))
        return SyncSessionWatch(self._loop, watch)

    def list_models(self) -> Iterator[model_pb2.Model]:
        """Yields all that is served, by name."""
        return Each(self._loop, self._client.list_models())

    def get_model(self, name: str) -> model_pb2.Model:
        """Returns what `models/{model}` is and what requests may ask of it."""
        return self._loop.run(self._client.get_model(name))

    def validate_constraint(
        self, constraint: types_pb2.Constraint, *, model: str = ""
    ) -> inference_pb2.ValidateConstraintResponse:
        """Says whether requests may use a constraint and, if not, which part is at fault."""
        return self._loop.run(self._client.validate_constraint(constraint, model=model))

    def tokenize(
        self,
        text: str,
        *,
        model: str = "",
        add_special_tokens: bool = False,
        allow_special_tokens: bool = False,
    ) -> list[int]:
        """Returns the text's token ids."""
        return self._loop.run(
            self._client.tokenize(
                text,
                model=model,
                add_special_tokens=add_special_tokens,
                allow_special_tokens=allow_special_tokens,
            )
        )

    def detokenize(
        self, token_ids: Iterable[int], *, model: str = "", skip_special_tokens: bool = False
    ) -> str:
        """Returns the tokens' text; bytes that form no character come as U+FFFD."""
        return self._loop.run(
            self._client.detokenize(token_ids, model=model, skip_special_tokens=skip_special_tokens)
        )

    def render_prompt(
        self, prompt: Says | types_pb2.Prompt, *, model: str = ""
    ) -> model_pb2.RenderPromptResponse:
        """Returns the prompt as the model would get it."""
        return self._loop.run(self._client.render_prompt(prompt, model=model))
