import asyncio
from array import array

import msgspec
import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import RequestNews, TakeTokens, max_unread_tokens
from antiphon_engine.api.messages import (
    Cancel,
    FinishOutput,
    FinishReason,
    GenerationRequest,
    Hold,
    OutputEnded,
    Release,
    SamplingParams,
    Started,
    StepNews,
    StopParams,
    ToEngine,
    TokenLogprobs,
)
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_engine.api.streams import MostUnread, NewsStream, deliver_step


class Desk:
    """Streams, and what they sent to the engine."""

    def __init__(self) -> None:
        self.streams: dict[int, NewsStream] = {}
        self.sent: list[ToEngine] = []

    def open(
        self,
        request_id: int,
        num_outputs: int = 1,
        max_unread_tokens: int = 1000,
        max_unread_bytes: int = 1000,
    ) -> NewsStream:
        self.streams[request_id] = NewsStream(
            request_id,
            num_outputs=num_outputs,
            most_unread=MostUnread(num_tokens=max_unread_tokens, num_prompt_bytes=max_unread_bytes),
            send=self.sent.append,
            forget=self.streams.pop,
        )
        return self.streams[request_id]

    def step(
        self, *rows: tuple[int, int, int], ended: list[OutputEnded] | None = None, **news: object
    ) -> list[int]:
        """Delivers a step as the only one of its read, and returns the requests that are over."""
        told = self.add_step(*rows, ended=ended, **news)
        for stream in told:
            stream.announce()
        return [stream.request_id for stream in dict.fromkeys(told) if stream.is_over]

    def add_step(
        self, *rows: tuple[int, int, int], ended: list[OutputEnded] | None = None, **news: object
    ) -> list[NewsStream]:
        self.end_ns = getattr(self, "end_ns", 100) + 10
        return deliver_step(
            StepNews(
                step=1,
                start_ns=self.end_ns - 5,
                end_ns=self.end_ns,
                request_ids=array("Q", [row[0] for row in rows]).tobytes(),
                output_indices=array("i", [row[1] for row in rows]).tobytes(),
                token_ids=array("i", [row[2] for row in rows]).tobytes(),
                ended=ended or [],
                **news,
            ),
            self.streams,
        )


def end(request_id: int, output_index: int = 0) -> OutputEnded:
    return OutputEnded(
        request_id=request_id,
        output_index=output_index,
        reason=FinishReason.END_ID,
        num_tokens=2,
        num_steps=3,
    )


async def test_late_reader_gets_all_news_joined() -> None:
    desk = Desk()
    stream = desk.open(1, num_outputs=2)
    desk.step(
        (1, 0, 5),
        (9, 0, 99),
        started=[Started(request_id=1, cached_prompt_tokens=32, step_start_ns=77)],
    )
    desk.step((1, 0, 6), (1, 1, 7), ended=[end(1, 0)])
    desk.step((1, 1, 8))

    news = await stream.next()

    assert (news.cached_prompt_tokens, news.first_step_ns) == (32, 77)
    assert (news.first_token_ns, news.last_token_ns) == (110, 130)
    assert {i: output.token_ids for i, output in news.outputs.items()} == {0: [5, 6], 1: [7, 8]}
    assert (news.outputs[0].ended, news.outputs[0].num_steps) == (FinishReason.END_ID, 3)
    assert news.outputs[1].ended is None


async def test_each_reading_has_only_what_came_since_the_last() -> None:
    desk = Desk()
    stream = desk.open(1)
    desk.step((1, 0, 5), started=[Started(request_id=1, cached_prompt_tokens=0, step_start_ns=77)])
    await stream.next()
    reading = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    desk.step((1, 0, 6))

    news = await reading

    assert (news.cached_prompt_tokens, news.first_token_ns) == (None, 0)
    assert news.outputs[0].token_ids == [6]


async def test_a_request_rests_while_too_much_of_its_prompt_is_unread() -> None:
    desk = Desk()
    stream = desk.open(1, max_unread_bytes=64)

    def told(first_position: int) -> PromptLogprobs:
        return PromptLogprobs(
            request_id=1,
            first_position=first_position,
            chosen=bytes(4 * 4),
            num_top=1,
            top_ids=bytes(4 * 4),
            top_logprobs=bytes(4 * 4),
        )

    desk.step(started=[Started(request_id=1, cached_prompt_tokens=0, step_start_ns=77)])
    desk.step(prompt_logprobs=[told(1)])
    assert not desk.sent
    desk.step(prompt_logprobs=[told(5)])
    assert desk.sent == [Hold(request_id=1)]
    desk.step((1, 0, 5), prompt_logprobs=[told(9)])

    news = await stream.next()

    assert [part.first_position for part in news.prompt_logprobs] == [1, 5, 9]
    assert news.outputs[0].token_ids == [5]
    assert desk.sent == [Hold(request_id=1), Release(request_id=1)]
    desk.step(prompt_logprobs=[told(13)])
    assert len(desk.sent) == 2


async def test_logprobs_go_with_their_tokens() -> None:
    desk = Desk()
    stream = desk.open(1)
    told = TokenLogprobs(request_id=1, output_index=0, chosen=-1.0, top_ids=b"", top_logprobs=b"")
    desk.step((1, 0, 5), logprobs=[told])
    desk.step((1, 0, 6), logprobs=[told])

    news = await stream.next()

    assert news.outputs[0].logprobs == [told, told]


async def test_request_is_done_with_its_last_output() -> None:
    desk = Desk()
    desk.open(1, num_outputs=2)

    assert desk.step((1, 0, 5), ended=[end(1, 0)]) == []
    assert desk.step((1, 1, 5), ended=[end(1, 1)]) == [1]


async def test_failure_comes_after_the_news_before_it() -> None:
    desk = Desk()
    stream = desk.open(1)
    desk.step((1, 0, 5))
    stream.fail(AntiphonError(ErrorReason.ENGINE_DOWN, "gone"))

    news = await stream.next()

    assert news.outputs[0].token_ids == [5]
    with pytest.raises(AntiphonError, match="gone"):
        await stream.next()
    stream.cancel()
    stream.close()
    assert desk.sent == []


async def test_cancel_is_sent_once_and_close_lets_go() -> None:
    desk = Desk()
    stream = desk.open(1)

    stream.finish_output(0, 3)
    stream.cancel()
    stream.cancel()
    stream.close()
    stream.close()
    stream.finish_output(0, 3)

    assert desk.sent == [
        FinishOutput(request_id=1, output_index=0, keep_tokens=3),
        Cancel(request_id=1),
    ]
    assert desk.streams == {}


async def test_close_of_a_finished_request_sends_nothing() -> None:
    desk = Desk()
    stream = desk.open(1)
    desk.step((1, 0, 5), ended=[end(1)])
    await stream.next()

    stream.close()

    assert desk.sent == []


async def test_hold_and_release_are_sent_once_each_time() -> None:
    desk = Desk()
    stream = desk.open(1)
    stream.release()
    for _ in range(2):
        stream.hold()
    for _ in range(2):
        stream.release()
    stream.hold()
    desk.step((1, 0, 5), ended=[end(1)])
    stream.release()

    assert desk.sent == [Hold(request_id=1), Release(request_id=1), Hold(request_id=1)]


async def test_a_request_rests_while_much_of_it_is_unread() -> None:
    desk = Desk()
    stream = desk.open(1, max_unread_tokens=3)
    desk.step((1, 0, 5), (1, 0, 6))
    before = list(desk.sent)
    desk.step((1, 0, 7))
    desk.step((1, 0, 8))  # Under way as the engine was told.

    held = list(desk.sent)
    news = await stream.next()

    assert before == []
    assert held == [Hold(request_id=1)]
    assert news.outputs[0].token_ids == [5, 6, 7, 8]
    assert desk.sent == [Hold(request_id=1), Release(request_id=1)]


async def test_a_request_that_its_reader_holds_rests_on_when_it_is_read() -> None:
    desk = Desk()
    stream = desk.open(1, max_unread_tokens=1)
    stream.hold()
    desk.step((1, 0, 5))
    await stream.next()

    held = list(desk.sent)
    stream.release()

    assert held == [Hold(request_id=1)]
    assert desk.sent == [Hold(request_id=1), Release(request_id=1)]


class Taker:
    """Takes in tokens up to a bound."""

    def __init__(self, most: int = 1000) -> None:
        self.offered: list[list[int]] = []
        self.taken: list[int] = []
        self._most = most

    def __call__(self, news: RequestNews) -> bool:
        token_ids = list(news.outputs[0].token_ids)
        self.offered.append(token_ids)
        if len(self.taken) + len(token_ids) > self._most:
            return False
        self.taken += token_ids
        return True


def reading_of(stream: NewsStream, take: TakeTokens) -> "asyncio.Task[RequestNews]":
    return asyncio.create_task(stream.next(take))


async def test_tokens_are_offered_within_the_step_and_wake_nobody() -> None:
    desk, taker = Desk(), Taker()
    reading = reading_of(desk.open(1), taker)
    await asyncio.sleep(0)

    desk.step((1, 0, 5))
    desk.step((1, 0, 6))

    assert taker.taken == [5, 6]
    await asyncio.sleep(0)
    assert not reading.done()
    desk.step((1, 0, 7), ended=[end(1)])
    news = await reading
    assert (news.outputs[0].token_ids, news.last_token_ns) == ([7], 130)
    assert taker.taken == [5, 6]


async def test_steps_that_come_at_once_are_offered_at_once() -> None:
    desk, taker = Desk(), Taker()
    reading = reading_of(desk.open(1), taker)
    await asyncio.sleep(0)

    told = [*desk.add_step((1, 0, 5)), *desk.add_step((1, 0, 6))]
    before = list(taker.offered)
    for stream in told:
        stream.announce()

    assert (before, taker.offered) == ([], [[5, 6]])
    assert not reading.done()


async def test_unread_tokens_are_offered_when_the_reader_comes() -> None:
    desk, taker = Desk(), Taker()
    stream = desk.open(1)
    desk.step((1, 0, 5))
    desk.step((1, 0, 6))

    reading = reading_of(stream, taker)
    await asyncio.sleep(0)

    assert (taker.offered, reading.done()) == ([[5, 6]], False)
    stream.fail(AntiphonError(ErrorReason.ENGINE_DOWN, "gone"))
    with pytest.raises(AntiphonError, match="gone"):
        await reading


async def test_a_start_is_never_offered() -> None:
    desk, taker = Desk(), Taker()
    reading = reading_of(desk.open(1), taker)
    await asyncio.sleep(0)

    desk.step((1, 0, 5), started=[Started(request_id=1, cached_prompt_tokens=0, step_start_ns=77)])

    assert (await reading).outputs[0].token_ids == [5]
    assert not taker.offered


async def test_what_is_not_taken_is_returned_with_what_comes_meanwhile() -> None:
    desk, taker = Desk(), Taker(most=1)
    reading = reading_of(desk.open(1), taker)
    await asyncio.sleep(0)

    desk.step((1, 0, 5))
    desk.step((1, 0, 6))
    desk.step((1, 0, 7))

    assert (await reading).outputs[0].token_ids == [6, 7]
    assert (taker.taken, taker.offered) == ([5], [[5], [6]])


async def test_a_request_goes_on_as_its_tokens_are_taken() -> None:
    desk = Desk()
    reading_of(desk.open(1, max_unread_tokens=1), Taker())
    await asyncio.sleep(0)

    desk.step((1, 0, 5))

    assert desk.sent == [Hold(request_id=1), Release(request_id=1)]


async def test_a_reader_that_fails_fails_alone() -> None:
    desk, taker = Desk(), Taker()

    def fail(_: RequestNews) -> bool:
        raise ZeroDivisionError

    failing, reading = reading_of(desk.open(1), fail), reading_of(desk.open(2), taker)
    await asyncio.sleep(0)

    desk.step((1, 0, 5), (2, 0, 6))
    desk.step((1, 0, 7), (2, 0, 8))

    assert taker.taken == [6, 8]
    with pytest.raises(ZeroDivisionError):
        await failing
    assert not reading.done()


def test_what_may_be_unread_depends_on_what_comes_with_a_token() -> None:
    plain = GenerationRequest(
        prompt=b"", sampling=SamplingParams(seed=1), stop=StopParams(max_output_tokens=9)
    )
    rich = msgspec.structs.replace(plain, top_logprobs=20)
    several = msgspec.structs.replace(plain, num_outputs=4)

    most = [max_unread_tokens(each, 1 << 20) for each in (plain, rich, several)]

    assert most[0] > 4 * most[1] > 4
    assert most[2] == most[0] // 4
    assert max_unread_tokens(rich, 1) == 1
