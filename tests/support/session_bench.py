"""Sessions over a fake engine and a real store, driven without gRPC."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from antiphon.v1.session_pb2 import (
    AppendItems,
    CancelRequest,
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    ForkSessionRequest,
    ListTurnsRequest,
    OpenSession,
    RewindSessionRequest,
    Session,
    StartTurn,
    Turn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import GenerationConfig, Item, StopConditions

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.access.tenancy import tenancy_of
from antiphon_server.call_writer import CallWriter
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.served_model import ServedModel
from antiphon_server.services.converse import Conversation
from antiphon_server.sessions.limits import Clock, Draws, SessionLimits
from antiphon_server.sessions.listing import list_turns
from antiphon_server.sessions.records import SessionKey
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.sessions.sqlite_store import SqliteStore
from antiphon_server.sessions.turn_request import Frame, read_append, read_start_turn
from support.direct_frames import DirectFrames
from support.fake_engine import FakeEngine
from support.fake_renderer import FakeRenderer
from support.served_models import TextSide, served_model
from support.session_rows import user

KEY = SessionKey("", "a")
FORK = SessionKey("", "fork")


@dataclass(slots=True)
class FakeClock:
    """A wall clock that stands still, and a counter for ids."""

    wall_ns: int = 1_800_000_000_000_000_000
    num_ids: int = 0

    def read(self) -> int:
        return self.wall_ns

    def draw_id(self) -> str:
        self.num_ids += 1
        return f"drawn{self.num_ids}"

    def pass_s(self, seconds: float) -> None:
        self.wall_ns += int(seconds * 1e9)


@dataclass(slots=True)
class SessionBench:
    """A registry, and what stands around it."""

    registry: SessionRegistry
    engine: FakeEngine
    model: ServedModel
    store: SqliteStore
    clock: FakeClock
    talks: list["Talk"] = field(default_factory=list)

    async def create(self, items: Sequence[Item] = (), **values: object) -> Session:
        """Creates the session KEY."""
        request = CreateSessionRequest(session_id="a", session=Session(**values), items=items)
        return await self.registry.create("", request)

    async def run(self, text: str, turn_id: str = "", **values: object) -> list[TurnEvent]:
        """Runs a turn of KEY to its end."""
        return await self.follow(start_turn(text, turn_id, **values))

    async def follow(self, start: StartTurn, key: SessionKey = KEY) -> list[TurnEvent]:
        """Runs a turn to its end."""
        async with self.registry.use(key) as session:
            turn = await session.start_turn(read_start_turn(start, Frame(path="turn")))
            return await events_of(turn.log)

    async def append(self, text: str, turn_id: str = "") -> list[TurnEvent]:
        """Appends a message to KEY."""
        async with self.registry.use(KEY) as session:
            frame = AppendItems(turn_id=turn_id, items=[user(text)])
            turn = await session.start_turn(read_append(frame, Frame(path="append")))
            return await events_of(turn.log)

    async def fork(self, **values: object) -> Session:
        """Forks KEY; the fork is FORK unless the values say otherwise."""
        values = {"name": KEY.name, "session_id": FORK.session_id} | values
        return await self.registry.fork("", ForkSessionRequest(**values))

    async def rewind(self, **values: object) -> Session:
        """Takes KEY back."""
        request = RewindSessionRequest(**{"name": KEY.name} | values)
        return await self.registry.rewind("", request)

    async def instruct(self, instructions: str) -> None:
        """Gives KEY other instructions, as another call does."""

        def change(values: Session) -> None:
            values.instructions = instructions

        async with self.registry.use(KEY) as session:
            await session.update(change, etag="", receipt=None)

    async def session(self, key: SessionKey = KEY) -> Session:
        """A session as it stands."""
        async with self.registry.use(key) as session:
            return await session.present_with_residency()

    async def turn(self, turn_id: str, key: SessionKey = KEY) -> Turn:
        """A turn as it stands."""
        async with self.registry.use(key) as session:
            return await session.logs.read_turn(turn_id)

    async def turns(self, key: SessionKey = KEY) -> list[Turn]:
        """All turns, also those that are not in the history."""
        request = ListTurnsRequest(session=key.name, show_all=True, page_size=1000)
        return list((await list_turns(self.registry, key.tenant, request)).turns)

    def converse(self, *frames: ConverseRequest) -> "Talk":
        """Opens a stream and sends frames."""
        self.talks.append(Talk(self.registry, frames))
        return self.talks[-1]

    @property
    def prompts(self) -> list[list[int]]:
        """All prompts that the engine got, in order."""
        return [request.prompt for request in self.engine.requests]

    @property
    def outputs(self) -> list[list[int]]:
        """What the engine said to each."""
        return [request.outputs[0].token_ids for request in self.engine.requests]


@dataclass(slots=True, kw_only=True)
class BenchSpec:
    """What a bench is made of."""

    text: TextSide
    path: Path
    engine: Callable[[], FakeEngine] = FakeEngine
    limits: SessionLimits = field(
        default_factory=lambda: SessionLimits(
            max_queued_turns=3, sweep_interval_s=3600.0, reconnect_grace_s=0.0
        )
    )
    clock: FakeClock = field(default_factory=FakeClock)
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    quotas: QuotaLimits = field(default_factory=QuotaLimits)
    fake_renderer: bool = True


@asynccontextmanager
async def session_bench(spec: BenchSpec) -> AsyncIterator[SessionBench]:
    """Sessions kept in the file of `spec.path`, until the block ends."""
    engine = spec.engine()
    model = served_model(spec.text, engine)
    if spec.fake_renderer:
        model = replace(model, renderer=FakeRenderer())
    offload = Offload(num_threads=2, max_pending=64)
    store = SqliteStore.open(spec.path, synchronous="normal", owner="test")
    tenancy = tenancy_of(spec.quotas)
    registry = SessionRegistry(
        store=store,
        models={model.name: model},
        generators={model.name: Generator(model, offload=offload, tenancy=tenancy)},
        offload=offload,
        limits=spec.limits,
        clock=Clock(wall_ns=spec.clock.read, monotonic_ns=spec.monotonic_ns),
        draws=Draws(draw_id=spec.clock.draw_id, draw_seed=lambda: 7),
        tenancy=tenancy,
    )
    try:
        await registry.start()
        bench = SessionBench(registry, engine, model, store, spec.clock)
        yield bench
        for talk in bench.talks:
            await talk.break_off()
    finally:
        await registry.close()
        await store.close()
        offload.close()


class Talk:
    """One stream: frames in, frames out."""

    def __init__(self, registry: SessionRegistry, frames: Iterable[ConverseRequest]) -> None:
        self._requests: asyncio.Queue[ConverseRequest | None] = asyncio.Queue()
        self.send(*frames)
        self.direct = DirectFrames()
        writer = CallWriter(self.direct, check=lambda: None)
        self._responses = Conversation(registry, "", writer=writer).run(self._iterate())
        self._reading: asyncio.Task[ConverseResponse] | None = None

    def send(self, *frames: ConverseRequest) -> None:
        for frame in frames:
            self._requests.put_nowait(frame)

    def half_close(self) -> None:
        self._requests.put_nowait(None)

    async def next(self) -> ConverseResponse:
        async with asyncio.timeout(60):
            return await self._read()

    async def is_silent(self, seconds: float = 0.1) -> bool:
        """Whether nothing is told for a while."""
        return not await self._is_told_of(seconds)

    async def until(self, is_last: Callable[[ConverseResponse], bool]) -> list[ConverseResponse]:
        """Reads up to the first frame that is wanted."""
        frames = [await self.next()]
        while not is_last(frames[-1]):
            frames.append(await self.next())
        return frames

    async def rest(self) -> list[ConverseResponse]:
        """Half-closes and reads to the end."""
        self.half_close()
        frames: list[ConverseResponse] = []
        async with asyncio.timeout(60):
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    frames.append(await self._read())
        return frames

    async def error(self) -> AntiphonError:
        """Reads to the end, which must be a bad one."""
        try:
            while True:
                await self.next()
        except AntiphonError as error:
            return error

    async def break_off(self) -> None:
        """Ends as a broken connection does."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._responses.aclose()

    async def _read(self) -> ConverseResponse:
        await self._is_told_of(None)
        if (frame := self.direct.take()) is not None:
            return frame
        reading, self._reading = self._reading, None
        return await reading

    async def _is_told_of(self, timeout_s: float | None) -> bool:
        """Waits for a frame, whether the stream's task tells it or another writes it."""
        self._reading = self._reading or asyncio.ensure_future(anext(self._responses))
        arriving = asyncio.ensure_future(self.direct.arrive())
        try:
            told, _ = await asyncio.wait(
                {self._reading, arriving},
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            arriving.cancel()
        return bool(told)

    async def _iterate(self) -> AsyncIterator[ConverseRequest]:
        while (frame := await self._requests.get()) is not None:
            yield frame


def open_frame(name: str = KEY.name, **values: object) -> ConverseRequest:
    return ConverseRequest(frame_id="open", open=OpenSession(name=name, **values))


def start_turn(text: str, turn_id: str = "", *, max_tokens: int = 5, **values: object) -> StartTurn:
    config = GenerationConfig(stop=StopConditions(max_output_tokens=max_tokens))
    items = [user(text)] if text else []
    return StartTurn(**{"turn_id": turn_id, "items": items, "config": config} | values)


def generate_frame(text: str, turn_id: str = "", **values: object) -> ConverseRequest:
    return ConverseRequest(frame_id=f"g{turn_id}", generate=start_turn(text, turn_id, **values))


def append_frame(text: str, turn_id: str = "") -> ConverseRequest:
    items = AppendItems(turn_id=turn_id, items=[user(text)])
    return ConverseRequest(frame_id=f"a{turn_id}", append=items)


def cancel_frame(turn_id: str, *, discard: bool = False) -> ConverseRequest:
    cancel = CancelRequest(turn_id=turn_id, discard_partial=discard)
    return ConverseRequest(frame_id=f"c{turn_id}", cancel=cancel)


def ends(turn_id: str) -> Callable[[ConverseResponse], bool]:
    """Whether a frame ends a turn."""

    def is_end(frame: ConverseResponse) -> bool:
        kind = frame.turn_event.WhichOneof("event")
        return frame.turn_event.turn_id == turn_id and kind in ("completed", "failed")

    return is_end


def is_kind(kind: str) -> Callable[[ConverseResponse], bool]:
    """Whether a frame, or the event in it, is of a kind."""
    return lambda frame: kind in (frame.WhichOneof("frame"), frame.turn_event.WhichOneof("event"))


async def eventually(is_so: Callable[[], bool]) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


async def events_of(log: object, *, on_event: Callable[[], None] = lambda: None) -> list[TurnEvent]:
    """Reads a turn's events to their end, and checks them; calls `on_event` with each."""
    wake = asyncio.Event()
    reader = log.open_reader(wake)
    events: list[TurnEvent] = []
    async with asyncio.timeout(60):
        while not reader.finished:
            wake.clear()
            while event := reader.read():
                events.append(event)
                on_event()
            if not reader.finished:
                await wake.wait()
    reader.close()
    check_turn_events(events)
    return events


def turn_events(frames: Iterable[ConverseResponse], turn_id: str) -> list[TurnEvent]:
    """A turn's events among a stream's frames, checked."""
    events = [f.turn_event for f in frames if f.turn_event.turn_id == turn_id]
    check_turn_events(events)
    return events


def check_turn_events(events: Sequence[TurnEvent]) -> None:
    """Checks that a turn was told of whole: in order, without gaps, with one end."""
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "accepted"
    assert [kind in ("completed", "failed") for kind in kinds].count(True) == 1
    assert kinds[-1] in ("completed", "failed")
    expected = 1
    for event in events:
        assert event.first_sequence == expected
        assert event.sequence >= expected
        expected = event.sequence + 1
    assert len({event.epoch for event in events}) == 1


def text_of(events: Iterable[TurnEvent]) -> str:
    return "".join(event.delta.text for event in events)
