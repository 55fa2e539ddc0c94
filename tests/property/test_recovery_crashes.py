"""Servers and engines that die at any moment: the turns end up as if nothing had been.

A client sends turns, and after each crash sends again all that it has seen no end of. It reaches
the state of a run without a crash, every turn once, and nothing that it was told is taken back.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from antiphon.v1.session_pb2 import AppendItems, Turn, TurnEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon_engine.api.handle import EngineState
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.session import LiveSession, StartedTurn
from antiphon_server.sessions.turn_request import Frame, read_append, read_start_turn
from support.crashes import copy_left_behind
from support.fake_engine import FakeEngine
from support.served_models import TextSide, load_text_side
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    events_of,
    session_bench,
    start_turn,
    text_of,
)
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer

LIMIT_S = 60.0


@lru_cache(maxsize=1)
def text_side() -> TextSide:
    with tempfile.TemporaryDirectory() as directory:
        return load_text_side(save_byte_level_tokenizer(Path(directory) / "tokenizer"))


@dataclass(frozen=True, slots=True)
class Step:
    """A turn that the client wants."""

    text: str
    num_tokens: int
    """0: it appends."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What dies, and when: once the client has seen so many events, and so many moments later."""

    kills_server: bool
    num_events: int
    num_moments: int


STEPS = st.lists(
    st.builds(Step, st.sampled_from(["a", "bc", "def"]), st.sampled_from([0, 1, 3, 20, 40])),
    min_size=1,
    max_size=4,
).map(lambda steps: [*steps, Step("last", 2)])
INCIDENTS = st.lists(
    st.builds(Incident, st.booleans(), st.integers(0, 30), st.integers(0, 400)), max_size=4
)


@dataclass(slots=True)
class Client:
    """Sends turns, and notes what it is told as long as its server lives."""

    steps: Sequence[Step]
    accepted: set[str] = field(default_factory=set)
    ends: dict[str, list[TurnEvent]] = field(default_factory=dict)
    """The events of turns that have ended, by id."""
    num_events: int = 0
    connected: bool = False

    async def talk(self, bench: SessionBench) -> None:
        """Sends all turns that it knows no end of, and reads each to its end."""
        async with bench.registry.use(KEY) as session, asyncio.TaskGroup() as readers:
            for number, step in enumerate(self.steps):
                if f"t{number}" not in self.ends:
                    readers.create_task(self._run(session, f"t{number}", step))

    async def _run(self, session: LiveSession, turn_id: str, step: Step) -> None:
        turn = await self._send(session, turn_id, step)
        if self.connected:
            self.accepted.add(turn_id)
        events = await events_of(turn.log, on_event=self._count)
        if self.connected:
            self.ends[turn_id] = events

    async def _send(self, session: LiveSession, turn_id: str, step: Step) -> StartedTurn:
        frame = Frame(path="turn")
        if step.num_tokens:
            start = start_turn(step.text, turn_id, max_tokens=step.num_tokens)
            return await session.start_turn(read_start_turn(start, frame))
        append = AppendItems(turn_id=turn_id, items=[user(step.text)])
        return await session.start_turn(read_append(append, frame))

    def _count(self) -> None:
        self.num_events += 1


async def calm_turns(spec: BenchSpec, steps: Sequence[Step]) -> list[Turn]:
    """What the turns come to where nothing dies."""
    async with session_bench(replace(spec, path=spec.path.with_name("calm.db"))) as bench:
        await bench.create()
        await Client(steps).talk(bench)
        return [await bench.turn(f"t{number}") for number in range(len(steps))]


async def live_through(
    spec: BenchSpec, client: Client, incidents: Sequence[Incident]
) -> tuple[Sequence[Incident], Path]:
    """Runs one server until the client has all or an incident ends it.

    Returns:
        The incidents that are left, and what the server left.
    """
    async with session_bench(spec) as bench:
        if await bench.store.read_session(KEY) is None:
            await bench.create()
        client.connected = True
        talking = asyncio.create_task(client.talk(bench))
        left = spec.path
        while incidents and not talking.done():
            incident, *incidents = incidents
            await moment_of(incident, client, talking)
            if incident.kills_server:
                client.connected = False
                left = copy_left_behind(spec.path)
                talking.cancel()
                break
            bench.engine.set_state(EngineState.DOWN)
            bench.engine.set_state(EngineState.READY)
        with contextlib.suppress(asyncio.CancelledError):
            await talking
        return incidents, left


async def moment_of(incident: Incident, client: Client, talking: "asyncio.Task[None]") -> None:
    """Waits until it is time, or the client has nothing to do any more."""
    wanted = client.num_events + incident.num_events
    while client.num_events < wanted and not talking.done():  # noqa: ASYNC110 - a moment each
        await asyncio.sleep(0)
    for _ in range(incident.num_moments):
        await asyncio.sleep(0)


async def run(spec: BenchSpec, steps: Sequence[Step], incidents: Sequence[Incident]) -> None:
    expected = await calm_turns(spec, steps)
    client = Client(steps)
    path = spec.path
    async with asyncio.timeout(LIMIT_S):
        while len(client.ends) < len(steps):
            promised, ended = set(client.accepted), dict(client.ends)
            incidents, path = await live_through(replace(spec, path=path), client, incidents)
            assert promised <= client.accepted
            assert ended.items() <= client.ends.items()
    async with session_bench(replace(spec, path=path)) as bench:
        turns = [await bench.turn(f"t{number}") for number in range(len(steps))]
        session = await bench.session()
        assert not bench.engine.requests, "nothing is run that has ended"
        assert not await bench.store.list_unfinished()

    assert session.num_turns == len(steps)
    for number, (turn, calm) in enumerate(zip(turns, expected, strict=True)):
        told = client.ends[f"t{number}"]
        assert turn.state == calm.state == Turn.STATE_COMPLETED
        assert turn.output == calm.output
        assert turn.usage.prompt_tokens == calm.usage.prompt_tokens
        assert turn.usage.output_tokens == calm.usage.output_tokens
        assert text_of(told) == calm.output.text
        assert told[-1].epoch == turn.epoch, "it has not been run since"


def test_every_turn_is_there_once_and_nothing_told_is_taken_back(scale: int) -> None:
    @given(
        steps=STEPS,
        incidents=INCIDENTS,
        checkpoint_tokens=st.sampled_from([1, 3, 16]),
        interval_s=st.sampled_from([0.001, 1.0]),
    )
    @settings(
        deadline=None,
        max_examples=12 * scale,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    def crash(
        steps: list[Step], incidents: list[Incident], checkpoint_tokens: int, interval_s: float
    ) -> None:
        with tempfile.TemporaryDirectory() as directory:
            spec = BenchSpec(text=text_side(), path=Path(directory) / "sessions.db")
            # Slow enough for turns to wait behind one that runs.
            spec.engine = partial(FakeEngine, step_interval_s=0.001)
            spec.limits = SessionLimits(
                checkpoint_tokens=checkpoint_tokens,
                checkpoint_interval_s=interval_s,
                max_attempts=1000,
            )
            asyncio.run(run(spec, steps, incidents))

    crash()
