import asyncio
import random

from antiphon_engine.api.announcing import (
    ALWAYS_AT_ONCE,
    EARLY_NS,
    LATE_NS,
    Announcements,
)

NUM_STREAMS = 4 * ALWAYS_AT_ONCE
LATE, EARLY = LATE_NS + 1, EARLY_NS - 1


class Stream:
    def __init__(self, told: list["Stream"]) -> None:
        self.is_urgent = False
        self.was_told = asyncio.Event()
        self._told = told

    def announce(self) -> None:
        self._told.append(self)
        self.was_told.set()


class Crowd:
    """Streams that get a token in every step."""

    def __init__(self, num_streams: int = NUM_STREAMS) -> None:
        self.told: list[Stream] = []
        self.streams = [Stream(self.told) for _ in range(num_streams)]
        self.announcements = Announcements()

    def read(self, lag_ns: int) -> list[Stream]:
        """Reads a step and returns who was told."""
        self.told.clear()
        for stream in self.streams:
            self.announcements.add(stream)
        self.announcements.bring(lag_ns)
        return list(self.told)


async def test_all_are_told_at_once_while_the_loop_keeps_up() -> None:
    crowd = Crowd()

    for _ in range(3):
        assert crowd.read(EARLY) == crowd.streams


async def test_they_are_told_by_turns_where_steps_are_read_late() -> None:
    crowd = Crowd()
    half = NUM_STREAMS // 2

    told = [crowd.read(LATE) for _ in range(3)]

    assert told[0] == crowd.streams[:half]
    assert told[1] == crowd.streams[half:]
    assert set(told[2]) == set(crowd.streams[:half])


async def test_all_are_told_at_once_again_when_the_loop_has_caught_up() -> None:
    crowd = Crowd()
    crowd.read(LATE)

    for _ in range(6):
        told = crowd.read(EARLY)

    assert set(told) == set(crowd.streams)


async def test_few_streams_never_wait() -> None:
    crowd = Crowd(ALWAYS_AT_ONCE)

    for _ in range(3):
        assert crowd.read(LATE) == crowd.streams


async def test_a_start_or_an_end_never_waits() -> None:
    crowd = Crowd()
    crowd.streams[-1].is_urgent = True

    assert crowd.streams[-1] in crowd.read(LATE)


async def test_those_that_wait_are_told_where_no_further_step_comes() -> None:
    crowd = Crowd()
    told = crowd.read(LATE)

    await asyncio.wait_for(crowd.streams[-1].was_told.wait(), 30)

    assert crowd.told == crowd.streams
    assert len(told) < NUM_STREAMS


async def test_nobody_waits_for_more_than_one_further_step() -> None:
    rng = random.Random(4)
    crowd = Crowd()
    waiting: set[Stream] = set()
    for _ in range(200):
        lag_ns = rng.choice([EARLY, LATE, (EARLY + LATE) // 2])
        crowd.streams = [Stream(crowd.told) for _ in range(rng.randrange(NUM_STREAMS))]

        told = set(crowd.read(lag_ns))

        assert waiting <= told
        waiting = set(crowd.streams) - told
