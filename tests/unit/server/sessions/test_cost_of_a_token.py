"""What a token of a running output costs the front end, in calls of Python functions."""

import asyncio
import sys
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

from antiphon.v1.session_pb2 import ConverseRequest, ConverseResponse

from antiphon_engine.api.handle import MAX_UNREAD_BYTES, RequestStream
from antiphon_engine.api.messages import GenerationRequest, Started, StepNews
from antiphon_engine.api.open_streams import OpenStreams
from antiphon_server.call_writer import CallWriter
from antiphon_server.services.converse import Conversation
from support.fake_engine import FakeEngine
from support.served_models import TextSide
from support.session_bench import BenchSpec, eventually, generate_frame, open_frame, session_bench

MAX_CALLS = 40
"""Each is worth a good part of a microsecond where streams are many."""


class LinkedEngine(FakeEngine):
    """One whose news take the way of an engine process's."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = OpenStreams()
        self.request_id = 0

    def submit(
        self, request: GenerationRequest, *, max_unread_bytes: int = MAX_UNREAD_BYTES
    ) -> RequestStream:
        stream = self.streams.submit(
            request, max_unread_bytes=max_unread_bytes, send=lambda _: None
        )
        self.request_id = stream.request_id
        return stream

    def tell(self, *token_ids: int, started: bool = False) -> None:
        """Tells of a step."""
        num_rows = len(token_ids)
        beginning = Started(request_id=self.request_id, cached_prompt_tokens=0, step_start_ns=1)
        step = StepNews(
            step=1,
            start_ns=1,
            end_ns=2,
            request_ids=array("Q", [self.request_id] * num_rows).tobytes(),
            output_indices=array("i", [0] * num_rows).tobytes(),
            token_ids=array("i", token_ids).tobytes(),
            started=[beginning] if started else [],
        )
        self.streams.take_step(step)
        self.streams.announce()


class Transport:
    """Takes every message at once."""

    def __init__(self) -> None:
        self.written: list[ConverseResponse] = []

    async def write(self, message: ConverseResponse) -> None:
        self.written.append(message)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(taken.set_result, None)
        await taken


async def _requests() -> AsyncIterator[ConverseRequest]:
    yield open_frame()
    yield generate_frame("one", "t1", max_tokens=50)
    await asyncio.Event().wait()


async def _tell_all(conversation: Conversation, told: list[ConverseResponse]) -> None:
    async for frame in conversation.run(_requests()):
        told.append(frame)


async def test_a_token_passes_few_functions(text: TextSide, tmp_path: Path):
    transport, told = Transport(), list[ConverseResponse]()
    engine = LinkedEngine()
    spec = BenchSpec(text=text, path=tmp_path / "s.db", engine=lambda: engine)
    token_ids = text.tokenizer.encode("a b", add_special_tokens=False, allow_special_tokens=False)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/antiphon_" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    async with session_bench(spec) as bench:
        await bench.create()
        writer = CallWriter(transport, lambda: None)
        telling = asyncio.create_task(
            _tell_all(Conversation(bench.registry, "", writer=writer), told)
        )
        await eventually(lambda: bool(engine.request_id))
        engine.tell(token_ids[0], started=True)
        await eventually(lambda: bool(told) and told[-1].turn_event.HasField("delta"))
        engine.tell(token_ids[0])
        await eventually(lambda: len(transport.written) == 1)

        await eventually(lambda: not writer.is_busy)
        num_before = len(transport.written)
        for token_id in token_ids:
            sys.setprofile(count)
            engine.tell(token_id)
            for _ in range(5):
                await asyncio.sleep(0)
            sys.setprofile(None)
        telling.cancel()
        await asyncio.wait({telling})

    assert len(transport.written) - num_before == len(token_ids)
    assert calls.total() <= MAX_CALLS * len(token_ids), dict(calls)
