"""Tokens that are told without the task being woken that waits for them."""

import asyncio
import tracemalloc

import pytest
from antiphon.v1.types_pb2 import (
    OUTPUT_CHANNEL_CONTENT,
    Delta,
    GenerationConfig,
    OutputOptions,
    StopConditions,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import OutputNews, RequestNews, TakeTokens, take_nothing
from antiphon_server.generation import Event, Generation
from antiphon_server.generation_output import OutputProgress, OutputRecord
from antiphon_server.offload import Offload
from antiphon_server.output_calls import OutputCalls
from antiphon_server.text.output_text import OutputText, TextSpec
from antiphon_server.validation import resolve_config
from support.fake_engine import FakeEngine, fixed_ids
from support.generations import Bench, check_events, text_of
from support.served_models import TextSide, served_model

SAID = "one two three four five six"


@pytest.fixture
def bench(text: TextSide, offload: Offload) -> Bench:
    token_ids = text.tokenizer.encode(SAID, add_special_tokens=False, allow_special_tokens=False)
    return Bench.of(served_model(text, FakeEngine(script=fixed_ids(*token_ids))), offload)


class Ear:
    """Hears a generation, text and events in one order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.num_texts = 0

    async def listen(self, generation: Generation) -> None:
        await generation.tell(self.events.append, on_text=self._take)
        check_events(self.events, 1)

    def _take(self, text: str) -> None:
        self.num_texts += 1
        self.events.append(Delta(channel=OUTPUT_CHANNEL_CONTENT, text=text))


@pytest.mark.parametrize("token_ids", [False, True])
async def test_all_is_told_in_order_and_text_alone_as_text(bench: Bench, token_ids: bool) -> None:
    ear = Ear()
    generation = bench.start(GenerationConfig(output=OutputOptions(token_ids=token_ids)))

    await ear.listen(generation)

    assert text_of(ear.events) == generation.outputs[0].text == SAID
    assert bool(ear.num_texts) != token_ids
    assert len(generation.outputs[0].token_ids) == generation.usage.output_tokens


@pytest.mark.parametrize("most", [0, 1, 4])
async def test_what_may_not_be_told_at_once_is_yielded(bench: Bench, most: int) -> None:
    seen: list[Event] = []
    at_once: list[Event] = []

    def tell(event: Event) -> None:
        at_once.append(event)
        seen.append(event)

    generation = bench.start()
    generation.tell_at_once(tell, may_take=lambda: len(at_once) < most)
    async for event in generation.events():
        seen.append(event)

    check_events(seen, 1)
    assert text_of(seen) == SAID
    assert len(at_once) == most


class OfferingStream:
    """A request's stream that offers tokens whenever it is told to."""

    def __init__(self) -> None:
        self.take: TakeTokens = take_nothing
        self.is_read = asyncio.Event()

    async def next(self, take: TakeTokens = take_nothing) -> RequestNews:
        self.take = take
        self.is_read.set()
        await asyncio.Event().wait()
        raise AssertionError

    def close(self) -> None:
        """Nothing: it offers all the same."""


class OfferingEngine(FakeEngine):
    """One whose only request has such a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = OfferingStream()

    def submit(self, request: object, *, max_unread_bytes: int = 0) -> OfferingStream:
        del request, max_unread_bytes
        return self.stream


@pytest.mark.parametrize("end", ["fail", "close"])
async def test_nothing_is_told_at_once_behind_the_end(
    text: TextSide, offload: Offload, end: str
) -> None:
    texts: list[str] = []
    engine = OfferingEngine()
    generation = Bench.of(served_model(text, engine), offload).start()
    telling = asyncio.create_task(generation.tell(lambda _: None, on_text=texts.append))
    await asyncio.wait_for(engine.stream.is_read.wait(), 10)
    token_ids = text.tokenizer.encode("one", add_special_tokens=False, allow_special_tokens=False)
    news = RequestNews(outputs={0: OutputNews(token_ids=token_ids)})

    taken_before = engine.stream.take(news)
    if end == "fail":
        generation.fail(AntiphonError(ErrorReason.TIMEOUT, "too late"))
    else:
        generation.close()
    taken_behind = engine.stream.take(news)

    assert (taken_before, taken_behind) == (True, False)
    assert texts == ["one"]
    await asyncio.wait({telling})
    assert (telling.exception() is not None) == (end == "fail")


async def test_stop_strings_end_an_output_although_it_is_told_at_once(bench: Bench) -> None:
    ear = Ear()
    generation = bench.start(GenerationConfig(stop=StopConditions(stop_strings=["four"])))

    await ear.listen(generation)

    assert text_of(ear.events) == "one two three "
    assert ear.num_texts == 0
    assert generation.outputs[0].stop_match is not None
    assert generation.outputs[0].stop_match.text == "four"


def test_a_token_of_a_running_output_takes_a_few_bytes(bench: Bench, text: TextSide) -> None:
    record = OutputRecord(index=0)
    progress = OutputProgress(
        record,
        text=OutputText(text.tokenizer, TextSpec()),
        calls=OutputCalls("", 0),
        tokenizer=text.tokenizer,
        config=resolve_config(
            GenerationConfig(),
            model=bench.model,
            prompt_tokens=1,
            num_outputs=1,
            path="config",
            draw_seed=lambda: 7,
        ),
    )
    num_tokens = 4000
    first_id = text.tokenizer.vocabulary_size - 100
    progress.take_text([first_id])
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    for number in range(num_tokens):
        progress.take_text([first_id + number % 100])

    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Its id and its text, and what lists keep in reserve.
    assert after - before <= 1.25 * (4 * num_tokens + len(record.content)) + 4096
