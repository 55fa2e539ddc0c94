import asyncio
import random

from antiphon_engine.api.announcing import NUM_A_ROUND, Announcements

NUM_STREAMS = 4 * NUM_A_ROUND


class Stream:
    def __init__(self, told: list["Stream"]) -> None:
        self.has_news = False
        self.was_told = asyncio.Event()
        self.num_told_before = 0
        """How many had been told when its news came."""
        self._told = told

    def announce(self) -> None:
        self._told.append(self)
        self.has_news = False
        self.was_told.set()


class Crowd:
    """Streams that get a token in every step, and who was told, in order."""

    def __init__(self, num_streams: int = NUM_STREAMS) -> None:
        self.told: list[Stream] = []
        self.streams = [Stream(self.told) for _ in range(num_streams)]
        self.announcements = Announcements()

    def read(self) -> None:
        """Reads a step."""
        for stream in self.streams:
            if not stream.has_news:
                stream.num_told_before = len(self.told)
            stream.has_news = True
            stream.was_told.clear()
        self.announcements.add(self.streams)
        self.announcements.bring()

    async def until_told(self) -> None:
        async with asyncio.timeout(60):
            for stream in self.streams:
                await stream.was_told.wait()


async def test_all_are_told_in_their_order_without_a_further_step() -> None:
    crowd = Crowd()

    crowd.read()
    await crowd.until_told()

    assert crowd.told == crowd.streams


async def test_the_messages_of_a_few_are_written_before_the_next_few_are_told() -> None:
    crowd = Crowd()
    crowd.read()
    counts = []
    while len(crowd.told) < NUM_STREAMS:
        counts.append(len(crowd.told))
        await asyncio.sleep(0)

    assert counts == list(range(NUM_A_ROUND, NUM_STREAMS, NUM_A_ROUND))


async def test_a_few_never_wait() -> None:
    crowd = Crowd(NUM_A_ROUND)

    for _ in range(3):
        crowd.told.clear()
        crowd.read()
        assert crowd.told == crowd.streams


async def test_a_start_or_an_end_waits_for_nobody_and_is_told_once() -> None:
    crowd = Crowd()
    crowd.read()
    crowd.announcements.add_urgent(crowd.streams[-1])

    crowd.read()

    assert crowd.told == [*crowd.streams[:NUM_A_ROUND], crowd.streams[-1]]
    await crowd.until_told()
    assert crowd.told.count(crowd.streams[-1]) == 1


async def test_nothing_is_done_where_nobody_has_news() -> None:
    crowd = Crowd()
    crowd.announcements.bring()
    crowd.read()
    await crowd.until_told()
    crowd.told.clear()

    crowd.announcements.bring()
    await asyncio.sleep(0)

    assert crowd.told == []


async def test_nobody_is_told_twice_while_another_waits_however_fast_steps_come() -> None:
    rng = random.Random(4)
    crowd = Crowd()
    for _ in range(300):
        for _ in range(rng.randrange(3)):
            crowd.read()
        await asyncio.sleep(0)

        for stream in crowd.streams:
            if stream.has_news:
                told_meanwhile = crowd.told[stream.num_told_before :]
                assert len(set(told_meanwhile)) == len(told_meanwhile)
    await crowd.until_told()
