"""Drives sessions from code that is not asynchronous, over restarts of their server."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from antiphon.v1.session_pb2 import AppendItems, StartTurn, Turn, TurnEvent

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.event_log import ReaderSpec
from antiphon_server.sessions.records import SessionKey
from antiphon_server.sessions.turn_request import Frame, read_append, read_start_turn
from support.fake_request import FakeRequest
from support.served_models import TextSide, load_text_side
from support.session_bench import BenchSpec, SessionBench, events_of, eventually, session_bench
from support.tiny_tokenizers import save_byte_level_tokenizer

T = TypeVar("T")

_LOOP_TURNS = 40
"""Turns of the event loop within which tokens of a fake engine are in their turn's log."""


@lru_cache(maxsize=1)
def _text_side() -> TextSide:
    with tempfile.TemporaryDirectory() as directory:
        return load_text_side(save_byte_level_tokenizer(Path(directory) / "tokenizer"))


class SessionDriver:
    """A bench in a folder of its own; close it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._directory = Path(tempfile.mkdtemp())
        self._spec = BenchSpec(text=_text_side(), path=self._directory / "sessions.db")
        self.bench: SessionBench = self._open()

    @property
    def requests(self) -> list[FakeRequest]:
        """What the engine was asked for since the last restart."""
        return self.bench.engine.requests

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._spec.text.tokenizer.decode(token_ids, skip_special_tokens=True)

    def run(self, work: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(60):
                return await work

        return self._runner.run(bounded())

    def restart(self) -> None:
        """Ends the server and starts another on the same file."""
        self.run(self._context.__aexit__(None, None, None))
        self.bench = self._open()

    def close(self) -> None:
        self.run(self._context.__aexit__(None, None, None))
        self._runner.close()
        shutil.rmtree(self._directory)

    def follow(self, key: SessionKey, *starts: StartTurn) -> list[list[TurnEvent]]:
        """Runs turns, all at once, and returns their events."""

        async def follow_all() -> list[list[TurnEvent]]:
            return await asyncio.gather(*(self.bench.follow(start, key) for start in starts))

        return self.run(follow_all())

    def append(self, key: SessionKey, append: AppendItems) -> list[TurnEvent]:
        async def follow() -> list[TurnEvent]:
            async with self.bench.registry.use(key) as session:
                turn = await session.start_turn(read_append(append, Frame(path="append")))
                return await events_of(turn.log)

        return self.run(follow())

    def turns(self, key: SessionKey) -> list[Turn]:
        return self.run(self.bench.turns(key))

    def stop(
        self, key: SessionKey, start: StartTurn, *, num_steps: int, how: str
    ) -> list[TurnEvent]:
        """Runs a turn that is cancelled, or fails, behind so many tokens.

        Args:
            key: The session.
            start: The turn.
            num_steps: How many tokens it gets.
            how: `keep` and `drop` cancel it, `fail` makes the engine fail.
        """

        async def run() -> list[TurnEvent]:
            engine = self.bench.engine
            events = await self._begun(key, start)
            engine.step(num_steps)
            if how == "fail":
                engine.fail_all(AntiphonError(ErrorReason.INTERNAL, "it broke"))
            else:
                async with self.bench.registry.use(key) as session:
                    await session.cancel_turn(start.turn_id, discards=how == "drop")
            told = await events
            engine.release()
            return told

        return self.run(run())

    def interrupt(
        self, key: SessionKey, first: StartTurn, second: StartTurn, *, steps: int, reads: int
    ) -> tuple[list[TurnEvent], list[TurnEvent], int]:
        """Runs a turn that another one interrupts.

        Args:
            key: The session.
            first: The turn that is interrupted.
            second: The one that interrupts it.
            steps: How many tokens the first gets.
            reads: How often its driving reader reads before.

        Returns:
            The events of both, and the last number that was delivered of the first.
        """

        async def run() -> tuple[list[TurnEvent], list[TurnEvent], int]:
            engine = self.bench.engine
            first_events = await self._begun(key, first)
            async with self.bench.registry.use(key) as session:
                (turn,) = session.live_turns
            await turn.accepted
            reader = turn.log.open_reader(asyncio.Event(), ReaderSpec(drives=True))
            for _ in range(steps):
                engine.step()
                for _ in range(_LOOP_TURNS):
                    await asyncio.sleep(0)
            for _ in range(reads):
                reader.read()
            second_events = asyncio.create_task(self.bench.follow(second, key))
            await eventually(lambda: turn.cancel_asked or turn.ended.is_set())
            told = await first_events
            engine.release()
            return told, await second_events, reader.sequence

        return self.run(run())

    def leave(self, key: SessionKey, start: StartTurn, *, num_steps: int) -> None:
        """Begins a turn, and ends the server behind so many tokens of it; starts another."""

        async def begin() -> None:
            engine = self.bench.engine
            engine.hold()
            num_before = len(engine.requests)
            async with self.bench.registry.use(key) as session:
                await session.start_turn(read_start_turn(start, Frame(path="turn")))
            await eventually(lambda: len(engine.requests) > num_before)
            engine.step(num_steps)

        self.run(begin())
        self.restart()

    async def _begun(self, key: SessionKey, start: StartTurn) -> "asyncio.Task[list[TurnEvent]]":
        """Holds the engine and begins a turn; it has not generated anything then."""
        engine = self.bench.engine
        engine.hold()
        num_before = len(engine.requests)
        events = asyncio.create_task(self.bench.follow(start, key))
        await eventually(lambda: len(engine.requests) > num_before)
        return events

    def _open(self) -> SessionBench:
        self._context = session_bench(self._spec)
        return self.run(self._context.__aenter__())
