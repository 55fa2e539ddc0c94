"""The typed client: one method a call of the contract that this release serves."""

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self

from antiphon.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    session_pb2,
    types_pb2,
)

from antiphon_client.channel import ClientOptions, Connection, told
from antiphon_client.link import Watcher
from antiphon_client.multiplex import SharedCall
from antiphon_client.prompts import Says, generate_request, prompt_of
from antiphon_client.session import Session
from antiphon_client.session_calls import SessionCalls, creation
from antiphon_client.streams import GenerationStream
from antiphon_client.watching import SessionWatch


class Client:
    """Talks to one server at `target`, HOST:PORT or unix:PATH.

    Use it as an asynchronous context manager, or close it. It belongs to one event loop.
    Every method raises ServerError, or a subclass that goes by the gRPC status.

    Attributes:
        sessions: The calls on conversations that live on the server.
    """

    def __init__(
        self, target: str = "127.0.0.1:50051", options: ClientOptions | None = None
    ) -> None:
        self._connection = Connection(target, options or ClientOptions())
        channel = self._connection.channel
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._models = model_pb2_grpc.ModelServiceStub(channel)
        self._tokenizer = model_pb2_grpc.TokenizerServiceStub(channel)
        self.sessions = SessionCalls(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and every call that still runs."""
        await self._connection.close()

    async def generate(
        self,
        prompt: Says | types_pb2.Prompt,
        config: types_pb2.GenerationConfig | None = None,
        *,
        model: str = "",
        num_outputs: int | None = None,
        timeout_s: float | None = None,
    ) -> inference_pb2.GenerateResponse:
        """Returns all outputs. A prompt that is no Prompt stands for a conversation."""
        request = generate_request(prompt, config, model=model, num_outputs=num_outputs)
        return await self._connection.unary(self._inference.Generate, request, timeout_s=timeout_s)

    def stream_generate(
        self,
        prompt: Says | types_pb2.Prompt,
        config: types_pb2.GenerationConfig | None = None,
        *,
        model: str = "",
        num_outputs: int | None = None,
        timeout_s: float | None = None,
    ) -> GenerationStream:
        """Starts a generation and returns its events; no time limit where none is given."""
        request = generate_request(prompt, config, model=model, num_outputs=num_outputs)
        metadata = self._connection.metadata
        call = self._inference.StreamGenerate(request, timeout=timeout_s, metadata=metadata)
        return GenerationStream(told(call), call.cancel)

    def shared_call(self) -> SharedCall:
        """Returns a call that carries many generations; it begins when it is entered."""
        return SharedCall(self._connection)

    def new_session(
        self,
        settings: session_pb2.Session | None = None,
        *,
        session_id: str = "",
        items: Says = (),
        watcher: Watcher | None = None,
    ) -> Session:
        """Returns a session that is created when it is entered; `items` begin its history.

        `watcher` is told why the stream broke wherever it does, once and not at each try, and
        None once it stands again.
        """
        create = creation(settings, session_id=session_id, items=items)
        opening = session_pb2.OpenSession(create=create)
        return Session(self._connection, opening, watcher)

    def resume_session(
        self, name: str, *, take_over: bool = False, watcher: Watcher | None = None
    ) -> Session:
        """Returns a session that is there, `sessions/{session}`; attached when it is entered.

        With `take_over` it is taken from whoever drives it.
        """
        opening = session_pb2.OpenSession(name=name, take_over=take_over)
        return Session(self._connection, opening, watcher)

    def watch_session(self, name: str) -> SessionWatch:
        """Returns a watch on `sessions/{session}`, which begins when it is entered."""
        return SessionWatch(self._connection, name)

    async def get_model(self, name: str) -> model_pb2.Model:
        """Returns what `models/{model}` is and what requests may ask of it."""
        return await self._connection.unary(
            self._models.GetModel, model_pb2.GetModelRequest(name=name)
        )

    async def list_models(self) -> AsyncIterator[model_pb2.Model]:
        """Yields all that is served, by name."""
        request = model_pb2.ListModelsRequest()
        while True:
            page = await self._connection.unary(self._models.ListModels, request)
            for model in page.models:
                yield model
            if not page.next_page_token:
                return
            request = model_pb2.ListModelsRequest(page_token=page.next_page_token)

    async def validate_constraint(
        self, constraint: types_pb2.Constraint, *, model: str = ""
    ) -> inference_pb2.ValidateConstraintResponse:
        """Says whether requests may use a constraint and, if not, which part is at fault."""
        request = inference_pb2.ValidateConstraintRequest(model=model, constraint=constraint)
        return await self._connection.unary(self._inference.ValidateConstraint, request)

    async def tokenize(
        self,
        text: str,
        *,
        model: str = "",
        add_special_tokens: bool = False,
        allow_special_tokens: bool = False,
    ) -> list[int]:
        """Returns the text's token ids."""
        request = model_pb2.TokenizeRequest(
            model=model,
            text=text,
            add_special_tokens=add_special_tokens,
            allow_special_tokens=allow_special_tokens,
        )
        return list((await self._connection.unary(self._tokenizer.Tokenize, request)).token_ids)

    async def detokenize(
        self, token_ids: Iterable[int], *, model: str = "", skip_special_tokens: bool = False
    ) -> str:
        """Returns the tokens' text; bytes that form no character come as U+FFFD."""
        request = model_pb2.DetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
        return (await self._connection.unary(self._tokenizer.Detokenize, request)).text

    async def render_prompt(
        self, prompt: Says | types_pb2.Prompt, *, model: str = ""
    ) -> model_pb2.RenderPromptResponse:
        """Returns the prompt as the model would get it."""
        request = model_pb2.RenderPromptRequest(model=model, prompt=prompt_of(prompt))
        return await self._connection.unary(self._tokenizer.RenderPrompt, request)
