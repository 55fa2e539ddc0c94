import asyncio
import random
from collections.abc import Sequence

from antiphon_engine.api.announcing import NUM_A_ROUND, NUM_URGENT_A_ROUND, Announcements

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

    def read(self, urgent: Sequence[Stream] = ()) -> None:
        """Reads a step that has starts or ends of some."""
        for stream in self.streams:
            if not stream.has_news:
                stream.num_told_before = len(self.told)
            stream.has_news = True
            stream.was_told.clear()
        self.announcements.add(self.streams)
        for stream in urgent:
            self.announcements.add_urgent(stream)
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


async def test_tokens_of_others_go_out_between_many_ends() -> None:
    crowd = Crowd()
    ending = crowd.streams[: NUM_STREAMS // 2]
    others = crowd.streams[NUM_STREAMS // 2 :]
    crowd.read(urgent=ending)
    rounds = [crowd.told[:]]
    while len(crowd.told) < NUM_STREAMS:
        num_before = len(crowd.told)
        await asyncio.sleep(0)
        rounds.append(crowd.told[num_before:])

    assert max(sum(stream in ending for stream in each) for each in rounds) == NUM_URGENT_A_ROUND
    told_others = [stream for each in rounds[:2] for stream in each if stream in others]
    assert told_others == others
    assert [stream for stream in crowd.told if stream in ending] == ending


async def test_an_end_that_waits_is_told_once_with_the_tokens_that_come_meanwhile() -> None:
    crowd = Crowd()
    crowd.read(urgent=crowd.streams)

    crowd.read()

    await crowd.until_told()
    await asyncio.sleep(0)
    assert crowd.told[: 2 * NUM_URGENT_A_ROUND] == crowd.streams[: 2 * NUM_URGENT_A_ROUND]
    last = crowd.streams[-1]
    assert crowd.told.count(last) == 1


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
