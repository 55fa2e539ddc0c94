"""Frames in every order on streams that come and go: no hang, and one end for every turn."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    OpenSession,
    StartTurn,
    TurnCursor,
    TurnEvent,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.sessions.limits import SessionLimits
from support.fake_engine import FakeEngine
from support.served_models import TextSide, load_text_side
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    Talk,
    append_frame,
    cancel_frame,
    check_turn_events,
    eventually,
    generate_frame,
    open_frame,
    session_bench,
    text_of,
)
from support.tiny_tokenizers import save_byte_level_tokenizer

TURN_IDS = st.sampled_from(["t0", "t1", "t2", "t3"])
UNKNOWN_FIELD = b"\xf8\x07\x01"

GENERATES = st.builds(
    generate_frame,
    st.sampled_from(["one", "two", ""]),
    TURN_IDS,
    max_tokens=st.sampled_from([1, 8, 60]),
    if_busy=st.sampled_from(StartTurn.IfBusy.values()),
    on_disconnect=st.sampled_from(StartTurn.OnDisconnect.values()),
)
FRAMES = st.one_of(
    GENERATES,
    GENERATES,
    st.builds(append_frame, st.sampled_from(["x", "y"]), TURN_IDS),
    st.builds(cancel_frame, TURN_IDS, discard=st.booleans()),
    st.builds(
        lambda turn_id, epoch, sequence: ConverseRequest(
            ack=TurnCursor(turn_id=turn_id, epoch=epoch, sequence=sequence)
        ),
        TURN_IDS,
        st.integers(0, 2),
        st.integers(0, 80),
    ),
    st.just(open_frame()),
    st.just(ConverseRequest(frame_id="empty")),
    st.just(ConverseRequest.FromString(UNKNOWN_FIELD)),
)
OPENINGS = st.fixed_dictionaries(
    {
        "attachment_id": st.sampled_from(["", "x", "y"]),
        "take_over": st.booleans(),
        "watch_only": st.booleans(),
        "max_unacked_events": st.sampled_from([0, 0, 1, 5]),
    }
)
ACTIONS = st.one_of(
    st.tuples(st.just("open"), OPENINGS, st.booleans()),
    st.tuples(st.just("send"), st.integers(0, 2), st.lists(FRAMES, min_size=1, max_size=3)),
    st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("acknowledge"), st.integers(0, 2), st.none()),
    st.tuples(st.just("break"), st.integers(0, 2), st.none()),
    st.tuples(st.just("half_close"), st.integers(0, 2), st.none()),
    st.tuples(st.just("pass"), st.integers(0, 5), st.none()),
)


@lru_cache(maxsize=1)
def text_side() -> TextSide:
    with tempfile.TemporaryDirectory() as directory:
        return load_text_side(save_byte_level_tokenizer(Path(directory) / "tokenizer"))


@dataclass(slots=True)
class Reader:
    """One stream, and how far it has told each turn."""

    talk: Talk
    places: dict[str, int]
    """By turn: the last number that it, or the stream before it, has told."""
    ended: set[str] = field(default_factory=set)
    last: TurnEvent | None = None
    is_over: bool = False

    async def read(self, most: int) -> list[TurnEvent]:
        """Reads some frames, as far as there are any now, and checks the numbers in them."""
        events: list[TurnEvent] = []
        while most and not self.is_over and not await self.talk.is_silent(0.02):
            most -= 1
            try:
                frame = await self.talk.next()
            except (AntiphonError, StopAsyncIteration):
                self.is_over = True
                break
            self._check(frame)
            if frame.HasField("turn_event"):
                events.append(frame.turn_event)
        return events

    def _check(self, frame: ConverseResponse) -> None:
        if not frame.HasField("turn_event"):
            return
        event = frame.turn_event
        self.last = event
        if event.HasField("reset"):
            self.places[event.turn_id] = 0
            return
        if event.HasField("accepted"):
            # A turn may be told again for a frame that was sent again.
            self.ended.discard(event.turn_id)
            assert event.sequence == 1
        else:
            assert event.turn_id not in self.ended
        if event.HasField("completed") or event.HasField("failed"):
            self.ended.add(event.turn_id)


@dataclass(slots=True)
class World:
    """A session, and the streams on it."""

    bench: SessionBench
    readers: list[Reader] = field(default_factory=list)
    seen: dict[str, TurnEvent] = field(default_factory=dict)

    async def act(self, kind: str, what: object, how: object) -> None:
        if kind == "open":
            await self._open(what, resumes=bool(how))
            return
        if kind == "pass":
            for _ in range(int(what) * 20):
                await asyncio.sleep(0)
            return
        if not self.readers:
            return
        reader = self.readers[int(what) % len(self.readers)]
        if kind == "send":
            reader.talk.send(*how)
        elif kind == "read":
            self._note(await reader.read(int(how)))
        elif kind == "acknowledge" and reader.last is not None:
            last = reader.last
            cursor = TurnCursor(turn_id=last.turn_id, epoch=last.epoch, sequence=last.sequence)
            reader.talk.send(ConverseRequest(ack=cursor))
        elif kind == "break":
            self.readers.remove(reader)
            await reader.talk.break_off()
        elif kind == "half_close":
            reader.talk.half_close()

    async def _open(self, values: dict[str, object], *, resumes: bool) -> None:
        cursors = [
            TurnCursor(turn_id=event.turn_id, epoch=event.epoch, sequence=event.sequence)
            for event in self.seen.values()
        ]
        opening = OpenSession(name="sessions/a", resume=cursors if resumes else [], **values)
        talk = self.bench.converse(ConverseRequest(open=opening))
        reader = Reader(talk, places={})
        self.readers = [*self.readers, reader][-3:]
        self._note(await reader.read(2))

    def _note(self, events: Sequence[TurnEvent]) -> None:
        for event in events:
            self.seen[event.turn_id] = event

    async def check_all_ended(self) -> None:
        """Every turn that was accepted has one end, and is told the same to all who ask."""
        for talk in self.bench.talks:
            await talk.break_off()
        await eventually(lambda: self.bench.registry.num_live_turns == 0)
        turns = await self.bench.turns()
        cursors = [TurnCursor(turn_id=turn.name.rpartition("/")[2]) for turn in turns]
        frames = await self.bench.converse(open_frame(resume=cursors)).rest()
        for turn, cursor in zip(turns, cursors, strict=True):
            events = [f.turn_event for f in frames if f.turn_event.turn_id == cursor.turn_id]
            check_turn_events(events)
            if events[-1].HasField("completed"):
                kept = [e for e in events if e.sequence <= events[-1].completed.kept_sequence]
                assert text_of(kept) == turn.output.text
        assert set(self.seen) <= {cursor.turn_id for cursor in cursors}
        assert self.bench.engine.num_running == self.bench.engine.num_waiting == 0
        logs = self.bench.registry.surroundings.ended_logs
        for cursor in cursors:
            log = logs.find(KEY, cursor.turn_id)
            assert log is not None
            assert not log.driven


async def run(actions: Sequence[tuple[str, object, object]], directory: Path) -> None:
    limits = SessionLimits(
        max_queued_turns=3,
        sweep_interval_s=3600.0,
        reconnect_grace_s=0.0,
        max_watchers=2,
        max_undelivered_bytes=200,
        slow_reader_grace_s=0.5,
    )
    spec = BenchSpec(
        text=text_side(),
        path=directory / "sessions.db",
        limits=limits,
        engine=lambda: FakeEngine(step_interval_s=0.0005),
    )
    async with asyncio.timeout(60), session_bench(spec) as bench:
        await bench.create()
        world = World(bench)
        for action in actions:
            await world.act(*action)
        await world.check_all_ended()


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    # Shrinking runs with a real store takes minutes.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(ACTIONS, min_size=3, max_size=25))
def test_frames_in_every_order(actions: Sequence[tuple[str, object, object]]):
    directory = Path(tempfile.mkdtemp())
    try:
        asyncio.run(run(actions, directory))
    finally:
        shutil.rmtree(directory)
