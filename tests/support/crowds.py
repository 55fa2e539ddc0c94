"""Callers who change their minds: requests of every kind, given up at every moment."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
from antiphon.v1.inference_pb2 import (
    CancelGeneration,
    GenerateRequest,
    MultiplexGenerateRequest,
)
from antiphon.v1.session_pb2 import (
    CancelRequest,
    CancelTurnRequest,
    ConverseRequest,
    DeleteSessionRequest,
    GetTurnRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
    Turn,
)
from antiphon.v1.types_pb2 import (
    Constraint,
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import LIMIT_S
from support.server import RunningServer
from support.session_rows import user
from support.turn_runs import new_session

PHASES = ("before", "queue", "prompt", "output", "late")
"""When a caller gives up: at once, after a moment, behind the first event, behind some output,
behind the last output."""
FINISH_SHARE = 0.1
"""As many let their requests run to the end."""
GUIDED_SHARE = 1 / 3
"""As many must look like something, and give up while their grammar is made as well."""
ENDLESS_TOKENS = 4000
"""The budget of every request: far more than anyone waits for."""
_TURN_ID = "t"
_TAG = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What becomes of one request."""

    phase: str
    """One of PHASES, or "never"."""
    delay_s: float
    num_tokens: int
    """Of output, behind which to give up in the phase "output"."""
    prompt_ids: list[int]
    num_outputs: int
    constraint: Constraint | None
    """What the answer must look like; a grammar that nobody else asks for."""

    @property
    def may_end(self) -> bool:
        """Whether the request stops by itself behind the text."""
        return self.phase in ("never", "late")

    def has_enough(self, num_tokens: int) -> bool:
        """Whether it is time to give up, once so many tokens have come."""
        return self.phase == "prompt" or (self.phase == "output" and num_tokens >= self.num_tokens)


@dataclass(slots=True, kw_only=True)
class Crowd:
    """Sends requests to a server whose model says `text` to everybody, its last token for ever.

    No request ends by its budget: all of them stop behind the text or are given up.
    """

    server: RunningServer
    text: list[int]
    source: random.Random
    num_at_once: int = 16
    ends: Counter[str] = field(default_factory=Counter)
    """How the requests ended, as their callers saw it: by way and status."""

    async def send(self, num_requests: int) -> None:
        """Sends so many requests and returns when all of them have ended for their callers."""
        ways = (self._ask, self._stream, self._share, self._run_turn, self._talk)
        places = asyncio.Semaphore(self.num_at_once)

        async def live(way: Callable[[Life], Awaitable[str]], life: Life) -> None:
            async with places:
                self.ends[f"{way.__name__[1:]} {await way(life)}"] += 1

        lives = [(self.source.choice(ways), self._draw()) for _ in range(num_requests)]
        await asyncio.gather(*(live(way, life) for way, life in lives))

    def _config(self, life: Life) -> GenerationConfig:
        # What must look like something ends by its grammar, and not by an end token.
        ignores = True if life.constraint is None else None
        stop = StopConditions(max_output_tokens=ENDLESS_TOKENS, ignore_eos=ignores)
        if life.may_end:
            stop.stop_token_ids.append(self.text[-1])
        return GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=stop,
            constraint=life.constraint,
            output=OutputOptions(token_ids=True),
        )

    def _draw(self) -> Life:
        source = self.source
        stays = source.random() < FINISH_SHARE
        return Life(
            phase="never" if stays else source.choice(PHASES),
            delay_s=source.uniform(0, 0.05),
            num_tokens=source.randint(1, len(self.text) - 1),
            prompt_ids=[source.randrange(3, 300) for _ in range(source.randint(1, 300))],
            num_outputs=source.choice((1, 1, 3)),
            constraint=self._draw_constraint(),
        )

    def _draw_constraint(self) -> Constraint | None:
        """Draws one for a third of the requests; it allows all that the model says."""
        if self.source.random() > GUIDED_SHARE:
            return None
        return Constraint(regex=rf"[\s\S]*|no {self.source.getrandbits(60):x}")

    def _request(self, life: Life) -> GenerateRequest:
        return GenerateRequest(
            prompt=Prompt(token_ids=TokenIds(ids=life.prompt_ids)),
            config=self._config(life),
            num_outputs=life.num_outputs,
        )

    async def _ask(self, life: Life) -> str:
        """Sends a unary request and gives it up after a while."""
        call = self.server.inference.Generate(self._request(life), timeout=LIMIT_S)
        await _give_up_early(call, life)
        if life.phase == "never":
            answer = await call
            assert [list(o.token_ids) for o in answer.outputs] == [self.text] * life.num_outputs
        elif not call.done():
            await asyncio.sleep(life.delay_s)
            call.cancel()
        return (await call.code()).name

    async def _stream(self, life: Life) -> str:
        """Reads a stream as far as the phase says."""
        call = self.server.inference.StreamGenerate(self._request(life), timeout=LIMIT_S)
        await _give_up_early(call, life)
        num_tokens, last = 0, ""
        while not call.done() and (response := await _read(call)) is not None:
            assert last != "completed"
            last = response.WhichOneof("event")
            num_tokens += len(response.delta.token_ids)
            if life.has_enough(num_tokens) or (life.phase == "late" and last == "output_finished"):
                call.cancel()
        if life.phase == "never":
            assert (num_tokens, last) == (len(self.text) * life.num_outputs, "completed")
        return (await call.code()).name

    async def _share(self, life: Life) -> str:
        """Sends a request over a stream for many; stops it by its tag, or breaks the stream."""
        call = self.server.inference.MultiplexGenerate(timeout=LIMIT_S)
        await call.write(MultiplexGenerateRequest(tag=_TAG, generate=self._request(life)))
        await _give_up_early(call, life)
        num_tokens, last, has_asked = 0, "", False
        while last != "completed" and (frame := await _read(call)) is not None:
            for event in frame.events:
                last = event.generation.WhichOneof("event")
                num_tokens += len(event.generation.delta.token_ids)
            if life.has_enough(num_tokens) and not has_asked:
                has_asked = True
                await call.write(MultiplexGenerateRequest(tag=_TAG, cancel=CancelGeneration()))
        if life.phase == "never":
            assert num_tokens == len(self.text) * life.num_outputs
        if last == "completed":
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        return (await call.code()).name

    async def _run_turn(self, life: Life) -> str:
        """Runs a turn; its end is asked for by another call, or comes with the call's."""
        session = await new_session(self.server)
        start = self._start(life)
        call = self.server.sessions.RunTurn(
            RunTurnRequest(session=session, turn=start), timeout=LIMIT_S
        )
        await _give_up_early(call, life)
        num_tokens = 0
        while not call.done() and (event := await _read(call)) is not None:
            num_tokens += len(event.delta.token_ids)
            if life.has_enough(num_tokens):
                await self._cancel_turn(session, life)
            elif life.phase == "late" and num_tokens == len(self.text):
                break
        if life.phase == "never":
            assert num_tokens == len(self.text)
        call.cancel()
        await self._leave(session, life)
        return (await call.code()).name

    async def _talk(self, life: Life) -> str:
        """Starts a turn over a stream and stops it by a frame, or breaks the stream."""
        session = await new_session(self.server)
        call = self.server.sessions.Converse(timeout=LIMIT_S)
        await call.write(ConverseRequest(open=OpenSession(name=session)))
        assert (await call.read()).HasField("opened")
        await call.write(ConverseRequest(generate=self._start(life)))
        if life.phase == "before":
            await call.write(self._cancel_frame(life))
        num_tokens, ends = 0, 0
        if life.phase == "queue":
            await asyncio.sleep(life.delay_s)
            call.cancel()
        while not (call.done() or ends) and (frame := await _read(call)) is not None:
            event = frame.turn_event
            num_tokens += len(event.delta.token_ids)
            ends += event.WhichOneof("event") in ("completed", "failed")
            if not ends and life.has_enough(num_tokens):
                await call.write(self._cancel_frame(life))
        if life.phase != "queue":
            assert ends == 1
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        await self._leave(session, life)
        return (await call.code()).name

    def _start(self, life: Life) -> StartTurn:
        return StartTurn(
            turn_id=_TURN_ID,
            items=[user("hello " * (len(life.prompt_ids) // 4))],
            config=self._config(life),
            on_disconnect=StartTurn.ON_DISCONNECT_CANCEL,
        )

    def _cancel_frame(self, life: Life) -> ConverseRequest:
        discards = life.delay_s < 0.02
        return ConverseRequest(cancel=CancelRequest(turn_id=_TURN_ID, discard_partial=discards))

    async def _cancel_turn(self, session: str, life: Life) -> None:
        request = CancelTurnRequest(
            name=f"{session}/turns/{_TURN_ID}", discard_partial=life.delay_s < 0.02
        )
        turn = await self.server.sessions.CancelTurn(request, timeout=LIMIT_S)
        assert turn.state in (Turn.STATE_COMPLETED, Turn.STATE_FAILED)

    async def _leave(self, session: str, life: Life) -> None:
        """Deletes a session, one in two while its turn may still run."""
        if len(life.prompt_ids) % 2:
            await self._until_ended(session)
        request = DeleteSessionRequest(name=session)
        await self.server.sessions.DeleteSession(request, timeout=LIMIT_S)

    async def _until_ended(self, session: str) -> None:
        """Waits until the turn, where the server ever heard of it, has ended."""
        request = GetTurnRequest(name=f"{session}/turns/{_TURN_ID}")
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    turn = await self.server.sessions.GetTurn(request, timeout=LIMIT_S)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise
                    return
                if turn.state in (Turn.STATE_COMPLETED, Turn.STATE_FAILED):
                    return
                await asyncio.sleep(0.01)


async def _give_up_early(call: grpc.aio.Call, life: Life) -> None:
    if life.phase == "queue":
        await asyncio.sleep(life.delay_s)
    if life.phase in ("before", "queue"):
        call.cancel()


async def _read(call: grpc.aio.UnaryStreamCall) -> object | None:
    """Reads one message; None where the call has ended, however it did."""
    try:
        message = await call.read()
    except grpc.aio.AioRpcError:
        return None
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
        return None
    return None if message is grpc.aio.EOF else message
