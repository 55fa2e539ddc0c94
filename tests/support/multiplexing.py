"""A caller of MultiplexGenerate, and what every stream of its frames must keep to."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from antiphon.v1.inference_pb2 import (
    CancelGeneration,
    GenerateRequest,
    MultiplexGenerateRequest,
    MultiplexGenerateResponse,
    StreamGenerateResponse,
)
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.types_pb2 import (
    Failure,
    GenerationConfig,
    GoAway,
    Prompt,
    SamplingParams,
    StopConditions,
)

from antiphon_server.answer_size import MAX_ANSWER_BYTES
from support.fake_engine import FakeEngine
from support.inference_server import InferenceServer


@dataclass
class Told:
    """What was told under a tag."""

    events: list[StreamGenerateResponse] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(event.delta.text for event in self.events)

    @property
    def kinds(self) -> list[str]:
        return [str(event.WhichOneof("event")) for event in self.events]

    @property
    def num_ends(self) -> int:
        """Last events; more than one where the tag was used again."""
        return len(self.failures) + self.kinds.count("completed")

    @property
    def reasons(self) -> list[str]:
        return [failure.reason for failure in self.failures]

    def finish_reasons(self) -> list[int]:
        return [
            event.output_finished.finish_reason
            for event in self.events
            if event.HasField("output_finished")
        ]


class Multiplexer:
    """One call, whose frames are read as they come and sorted by their tags."""

    def __init__(self, stub: InferenceServiceStub, **options: object) -> None:
        self.call = stub.MultiplexGenerate(**options)
        self.told: dict[int, Told] = defaultdict(Told)
        self.go_aways: list[GoAway] = []
        self.num_frames = 0
        self.num_events = 0
        self.largest_bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def read_on(self) -> None:
        """Reads from now on, beside whatever the test does."""
        self._reading = asyncio.create_task(self._read_all())

    async def start(self, tag: int, request: GenerateRequest, **terms: object) -> None:
        await self.send(MultiplexGenerateRequest(tag=tag, generate=request, **terms))

    async def cancel(self, tag: int) -> None:
        await self.send(MultiplexGenerateRequest(tag=tag, cancel=CancelGeneration()))

    async def send(self, frame: MultiplexGenerateRequest) -> None:
        await self.call.write(frame)

    async def until(self, condition: Callable[["Multiplexer"], bool]) -> None:
        """Waits until what was told meets the condition."""
        async with asyncio.timeout(60):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    async def until_ended(self, *tags: int) -> None:
        await self.until(lambda seen: all(seen.told[tag].num_ends for tag in tags))

    async def finish(self) -> grpc.StatusCode:
        """Half-closes, reads to the end and returns the status."""
        await self.call.done_writing()
        return await self.end()

    async def end(self) -> grpc.StatusCode:
        """Reads to the end and returns the status."""
        if self._reading is None:
            self.read_on()
        assert self._reading is not None
        async with asyncio.timeout(60):
            await asyncio.wait({self._reading})
            return await self.call.code()

    def note(self, frame: MultiplexGenerateResponse) -> None:
        assert frame.events or frame.HasField("go_away")
        assert frame.ByteSize() <= MAX_ANSWER_BYTES
        self.num_frames += 1
        self.num_events += len(frame.events)
        self.largest_bytes = max(self.largest_bytes, frame.ByteSize())
        if frame.HasField("go_away"):
            self.go_aways.append(frame.go_away)
        for event in frame.events:
            told = self.told[event.tag]
            if event.HasField("failed"):
                told.failures.append(event.failed)
            else:
                assert event.generation.WhichOneof("event")
                told.events.append(event.generation)
        self._news.set()

    async def _read_all(self) -> None:
        try:
            async for frame in self.call:
                self.note(frame)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self._news.set()


@dataclass
class MultiplexSetup:
    """A server of one model that says what a fake engine does."""

    engine: FakeEngine
    server: InferenceServer

    def open(self, **options: object) -> Multiplexer:
        return Multiplexer(self.server.stub, **options)

    async def until_idle(self) -> None:
        """Waits until neither engine nor front end has anything left."""
        admission = self.server.generator.admission
        await until(
            lambda: (
                not self.engine.num_running + self.engine.num_waiting
                and not admission.num_running + admission.num_waiting
            )
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0.002)


def say(text: str = "one two", *, seed: int = 11, num_tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(text=text),
        config=GenerationConfig(
            sampling=SamplingParams(seed=seed),
            stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
        ),
    )


def endless() -> GenerateRequest:
    return say(num_tokens=240)


async def stream_text(server: InferenceServer, request: GenerateRequest) -> str:
    responses = [response async for response in server.stub.StreamGenerate(request)]
    assert all(isinstance(response, StreamGenerateResponse) for response in responses)
    return "".join(response.delta.text for response in responses)
