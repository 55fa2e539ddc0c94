"""Instructions of a multiplexed stream in every order, beside a naive model of their requests."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, field

import pytest
from antiphon.v1.inference_pb2 import (
    CancelGeneration,
    GenerateRequest,
    MultiplexGenerateRequest,
    TaggedEvent,
)
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    Prompt,
    StopConditions,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon_engine.api.errors import InvalidRequest
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.request_preparation import RequestPreparation
from antiphon_server.services.multiplex import MultiplexedStream, MultiplexLimits
from antiphon_server.services.multiplex_instructions import CallTerms, InstructionReader
from antiphon_server.trace_context import TraceContext
from support.fake_engine import FakeEngine
from support.served_models import TextSide, load_text_side, served_model
from support.tiny_tokenizers import save_byte_level_tokenizer

MAX_RUNNING = 3
CANCELLED = f"completed {FinishReason.FINISH_REASON_CANCELLED}"
FULL = f"completed {FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS}"
REFUSED = "failed INVALID_FIELD"

Move = tuple[str, int, int]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "cancel", "step", "bad"]),
        st.integers(0, 6),
        st.integers(1, 4),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextSide:
    return load_text_side(save_byte_level_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@dataclass
class Model:
    """What should become of the requests: tokens left by tag, those that run first."""

    left: dict[int, int] = field(default_factory=dict)
    ends: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    is_broken: bool = False

    @property
    def running(self) -> list[int]:
        return list(self.left)[:MAX_RUNNING]

    def start(self, tag: int, num_tokens: int) -> None:
        if tag in self.left:
            self.is_broken = True
        else:
            self.left[tag] = num_tokens

    def refuse(self, tag: int) -> None:
        if tag in self.left:
            self.is_broken = True
        else:
            self.ends[tag].append(REFUSED)

    def cancel(self, tag: int) -> None:
        if self.left.pop(tag, None) is not None:
            self.ends[tag].append(CANCELLED)

    def step(self) -> None:
        for tag in self.running:
            self.left[tag] -= 1
        for tag in [tag for tag, left in self.left.items() if left == 0]:
            del self.left[tag]
            self.ends[tag].append(FULL)


class Bench:
    """A stream without a transport, over an engine that steps by hand."""

    def __init__(self, text: TextSide) -> None:
        self.engine = FakeEngine()
        self.engine.hold()
        self.offload = Offload(num_threads=1, max_pending=64)
        model = served_model(text, self.engine)
        self.generator = Generator(model, offload=self.offload)
        preparation = RequestPreparation(
            {model.name: model},
            {model.name: self.generator},
            offload=self.offload,
            random_source=random.Random(1),
        )
        reader = InstructionReader(CallTerms(trace=TraceContext()), offload=self.offload)
        limits = MultiplexLimits(max_running=MAX_RUNNING)
        self.stream = MultiplexedStream(preparation, reader, limits=limits)
        self.frames: asyncio.Queue[MultiplexGenerateRequest | None] = asyncio.Queue()
        self.told: dict[int, list[TaggedEvent]] = defaultdict(list)
        self.num_read = 0

    async def instructions(self) -> AsyncIterator[MultiplexGenerateRequest]:
        while (frame := await self.frames.get()) is not None:
            yield frame
            self.num_read += 1

    async def read_all(self) -> None:
        async with aclosing(self.stream.frames(self.instructions())) as frames:
            async for frame in frames:
                for event in frame.events:
                    self.told[event.tag].append(event)

    async def until_as(self, model: Model, num_sent: int) -> None:
        """Waits until all that was sent is carried out."""
        await until(
            lambda: (
                self.num_read == num_sent
                and self.stream.num_requests == len(model.left)
                and sum(not r.ended for r in self.engine.requests) == len(model.running)
            )
        )

    def ends(self, tag: int) -> list[str]:
        """What the tag's last events said, in order; checks what came before each of them."""
        found: list[str] = []
        kinds: list[str] = []
        finish = 0
        for event in self.told[tag]:
            if event.HasField("failed"):
                found.append(f"failed {event.failed.reason}")
                kinds = []
                continue
            kind = str(event.generation.WhichOneof("event"))
            assert (kind == "started") == (not kinds) or kind == "output_finished"
            kinds.append(kind)
            finish = event.generation.output_finished.finish_reason or finish
            if kind == "completed":
                assert kinds.count("output_finished") == 1
                found.append(f"completed {finish}")
                kinds = []
        assert not kinds
        return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what another party changes
            await asyncio.sleep(0)


def frame_of(move: Move) -> MultiplexGenerateRequest:
    kind, tag, num_tokens = move
    if kind == "cancel":
        return MultiplexGenerateRequest(tag=tag, cancel=CancelGeneration())
    if kind == "bad":
        return MultiplexGenerateRequest(tag=tag)
    stop = StopConditions(max_output_tokens=num_tokens, ignore_eos=True)
    request = GenerateRequest(prompt=Prompt(text="on"), config=GenerationConfig(stop=stop))
    return MultiplexGenerateRequest(tag=tag, generate=request)


async def play(text: TextSide, moves: list[Move]) -> None:
    bench, model = Bench(text), Model()
    with closing(bench.stream):
        reading = asyncio.create_task(bench.read_all())
        num_sent = 0
        for kind, tag, num_tokens in moves:
            if kind == "step":
                bench.engine.step()
                model.step()
            else:
                bench.frames.put_nowait(frame_of((kind, tag, num_tokens)))
                num_sent += 1
                apply = {"start": model.start, "cancel": model.cancel, "bad": model.refuse}[kind]
                apply(*((tag, num_tokens) if kind == "start" else (tag,)))
            if model.is_broken:
                break
            await bench.until_as(model, num_sent)
        if model.is_broken:
            with pytest.raises(InvalidRequest):
                await reading
        else:
            bench.frames.put_nowait(None)
            while model.left:
                bench.engine.step()
                model.step()
                await bench.until_as(model, num_sent)
            await reading
            assert {tag: bench.ends(tag) for tag in list(bench.told)} == dict(model.ends)
    await until(lambda: all(request.ended for request in bench.engine.requests))
    admission = bench.generator.admission
    assert (admission.num_waiting, admission.num_running) == (0, 0)
    bench.offload.close()


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=MOVES)
def test_every_request_ends_once_and_as_it_was_told_to(text: TextSide, moves: list[Move]) -> None:
    asyncio.run(play(text, moves))
