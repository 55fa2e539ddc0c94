import asyncio
from array import array

import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import RequestNews
from antiphon_engine.api.messages import (
    FinishReason,
    GenerationRequest,
    OutputEnded,
    SamplingParams,
    StepNews,
    StopParams,
    Submit,
    ToEngine,
)
from antiphon_engine.api.open_streams import OpenStreams
from antiphon_engine.api.streams import NewsStream

REQUEST = GenerationRequest(
    prompt=b"", sampling=SamplingParams(seed=1), stop=StopParams(max_output_tokens=9)
)


class Engine:
    """Tells of steps, and notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.open = OpenStreams()

    def submit(self) -> NewsStream:
        return self.open.submit(REQUEST, max_unread_bytes=1 << 20, send=self.sent.append)

    def step(self, token_ids: dict[int, int], *ended: int) -> None:
        """Adds a step with a token of each request, and the ends of some."""
        self.open.take_step(
            StepNews(
                step=1,
                start_ns=90,
                end_ns=99,
                request_ids=array("Q", token_ids).tobytes(),
                output_indices=array("i", [0] * len(token_ids)).tobytes(),
                token_ids=array("i", token_ids.values()).tobytes(),
                ended=[
                    OutputEnded(
                        request_id=request_id,
                        output_index=0,
                        reason=FinishReason.END_ID,
                        num_tokens=1,
                        num_steps=1,
                    )
                    for request_id in ended
                ],
            )
        )


async def reading(stream: NewsStream) -> "asyncio.Task[RequestNews]":
    task = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    return task


async def test_news_come_when_all_of_a_read_is_taken() -> None:
    engine = Engine()
    task = await reading(engine.submit())
    engine.step({1: 5})
    engine.step({1: 6})
    await asyncio.sleep(0)
    assert not task.done()

    engine.open.announce()

    assert (await task).outputs[0].token_ids == [5, 6]


async def test_each_request_has_a_number_of_its_own() -> None:
    engine = Engine()

    streams = [engine.submit(), engine.submit()]

    assert [message.request_id for message in engine.sent if isinstance(message, Submit)] == [1, 2]
    assert [stream.request_id for stream in streams] == [1, 2]


async def test_a_request_that_is_over_gets_no_more() -> None:
    engine = Engine()
    stream = engine.submit()
    engine.step({1: 5}, 1)
    engine.step({1: 6})
    engine.open.announce()

    news = await stream.next()

    assert (news.outputs[0].token_ids, news.outputs[0].ended) == ([5], FinishReason.END_ID)


async def test_one_fails_alone_and_all_fail_together() -> None:
    engine = Engine()
    tasks = [await reading(engine.submit()) for _ in range(3)]

    engine.open.fail(2, AntiphonError(ErrorReason.NEVER_FITS, "too long"))
    engine.open.fail(2, AntiphonError(ErrorReason.NEVER_FITS, "again"))
    with pytest.raises(AntiphonError, match="too long"):
        await tasks[1]
    engine.open.fail_all(AntiphonError(ErrorReason.ENGINE_DOWN, "gone"))

    for task in (tasks[0], tasks[2]):
        with pytest.raises(AntiphonError, match="gone"):
            await task
