"""Tokens that are told without the task being woken that waits for them."""

import pytest
from antiphon.v1.types_pb2 import GenerationConfig, OutputOptions, StopConditions

from antiphon_server.generation import Event
from antiphon_server.offload import Offload
from support.fake_engine import FakeEngine, fixed_ids
from support.generations import Bench, check_events, text_of
from support.served_models import TextSide, served_model

SAID = "one two three four five six"


@pytest.fixture
def bench(text: TextSide, offload: Offload) -> Bench:
    token_ids = text.tokenizer.encode(SAID, add_special_tokens=False, allow_special_tokens=False)
    return Bench.of(served_model(text, FakeEngine(script=fixed_ids(*token_ids))), offload)


async def test_all_is_told_in_order_to_one_listener(bench: Bench) -> None:
    events: list[Event] = []

    await bench.start(GenerationConfig(output=OutputOptions(token_ids=True))).tell(events.append)

    check_events(events, 1)
    assert text_of(events) == SAID


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


async def test_stop_strings_end_an_output_although_it_is_told_at_once(bench: Bench) -> None:
    events: list[Event] = []
    generation = bench.start(GenerationConfig(stop=StopConditions(stop_strings=["four"])))

    await generation.tell(events.append)

    check_events(events, 1)
    assert text_of(events) == "one two three "
    assert generation.outputs[0].stop_match is not None
    assert generation.outputs[0].stop_match.text == "four"
