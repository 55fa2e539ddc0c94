"""A client with long calls that goes away; `python -m support.leaving_client` is one to kill.

Every call asks for far more than it will get. Sessions' turns ask to be cancelled when their
stream breaks.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
from antiphon.v1.inference_pb2 import GenerateRequest, MultiplexGenerateRequest
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.session_pb2_grpc import SessionServiceStub
from antiphon.v1.types_pb2 import (
    ChatMessage,
    GenerationConfig,
    Item,
    OutputOptions,
    Prompt,
    Role,
    SamplingParams,
    StopConditions,
    TokenIds,
)

LONG_PROMPT_TOKENS: Final = 6000
MAX_OUTPUT_TOKENS: Final = 2000
TURN_ID: Final = "long"
KINDS: Final = ("unary", "stream", "multiplex", "run_turn", "converse")
STREAMED_KINDS: Final = KINDS[1:]

Call = grpc.aio.UnaryUnaryCall | grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall

_SMALL_WINDOW: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the calls ask for."""

    long_prompt: bool = False
    much_to_write: bool = False
    """Whether each token comes with much beside it."""


class LeavingClient:
    """Calls over a connection of its own that takes in little ahead of its reader."""

    def __init__(self, target: str, wish: Wish) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_SMALL_WINDOW)
        self._wish = wish
        self.session = ""
        """Of the last call in a session."""

    async def open(self, kind: str) -> Call:
        """Makes a call and sends all of its request; nothing is read of the answer."""
        inference = InferenceServiceStub(self._channel)
        if kind == "unary":
            return inference.Generate(self._request())
        if kind == "stream":
            return inference.StreamGenerate(self._request())
        if kind == "multiplex":
            many = inference.MultiplexGenerate()
            await many.write(MultiplexGenerateRequest(tag=1, generate=self._request()))
            return many
        sessions = SessionServiceStub(self._channel)
        self.session = (await sessions.CreateSession(CreateSessionRequest())).name
        if kind == "run_turn":
            return sessions.RunTurn(RunTurnRequest(session=self.session, turn=self._turn()))
        call = sessions.Converse()
        await call.write(ConverseRequest(open=OpenSession(name=self.session)))
        await call.write(ConverseRequest(generate=self._turn()))
        return call

    async def close(self) -> None:
        await self._channel.close()

    def _request(self) -> GenerateRequest:
        # The first token is of each kind's own, so that none reuses another's cache.
        ids = range(10, 10 + LONG_PROMPT_TOKENS) if self._wish.long_prompt else (10, 11, 12)
        return GenerateRequest(
            prompt=Prompt(token_ids=TokenIds(ids=[i % 900 for i in ids])), config=self._config()
        )

    def _turn(self) -> StartTurn:
        text = "harbour " * LONG_PROMPT_TOKENS if self._wish.long_prompt else "Go on."
        return StartTurn(
            turn_id=TURN_ID,
            items=[Item(message=ChatMessage(role=Role.ROLE_USER, text=text))],
            config=self._config(),
            on_disconnect=StartTurn.ON_DISCONNECT_CANCEL,
        )

    def _config(self) -> GenerationConfig:
        return GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(max_output_tokens=MAX_OUTPUT_TOKENS, ignore_eos=True),
            output=OutputOptions(top_logprobs=20) if self._wish.much_to_write else None,
        )


async def stay(target: str, kinds: Sequence[str], wish: Wish) -> None:
    """Opens a call of each kind and reads none of them."""
    client = LeavingClient(target, wish)
    calls = [await client.open(kind) for kind in kinds]
    await asyncio.sleep(600)
    assert calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--long-prompt", action="store_true")
    parser.add_argument("--much-to-write", action="store_true")
    given = parser.parse_args()
    wish = Wish(long_prompt=given.long_prompt, much_to_write=given.much_to_write)
    asyncio.run(stay(given.target, given.kinds, wish))


if __name__ == "__main__":
    main()
