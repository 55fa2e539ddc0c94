"""The text of outputs: stops, held-back ends, and control tokens."""

import pytest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputOptions,
    StopConditions,
    StopMatch,
)

from antiphon_engine.api.messages import GenerationRequest
from antiphon_server.offload import Offload
from support.fake_engine import FakeEngine, fixed_ids
from support.generations import Bench, check_events, deltas_of, finish_of, text_of
from support.served_models import TextSide, served_model


def bench_saying(said: str, text: TextSide, offload: Offload) -> tuple[Bench, FakeEngine]:
    token_ids = text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=True)
    engine = FakeEngine(script=fixed_ids(*token_ids), num_late_tokens=2)
    return Bench.of(served_model(text, engine), offload), engine


def first_stop(said: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the stop string begins that is complete first, and which one that is."""
    hits = [(said.find(stop) + len(stop), said.find(stop), stop) for stop in stops if stop in said]
    return min(hits)[1:] if hits else None


STOPS = [
    ("seven eight NINETEEN ten", ["NINETEEN"], False),
    ("papaya papal papers", ["pape", "papal"], False),
    ("HALTgo on", ["HALT"], False),
    ("nothing of the kind", ["qqq"], False),
    ("a你好b", ["好"], False),
    ("one two HALT", ["HALT"], True),
    ("one two HALT and more", ["HALT"], True),
]


@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize("case", STOPS)
async def test_text_ends_where_a_stop_string_would_begin(
    case: tuple[str, list[str], bool], burst: bool, text: TextSide, offload: Offload
) -> None:
    said, stops, include = case
    bench, engine = bench_saying(said, text, offload)
    if burst:
        engine.hold()
    config = GenerationConfig(
        stop=StopConditions(stop_strings=stops, include_stop_string=include),
        output=OutputOptions(token_ids=True),
    )

    generation = bench.start(config)
    engine.step(40 if burst else 0)
    events = [event async for event in generation.events()]

    check_events(events, 1)
    found = first_stop(said, stops)
    if found is None:
        assert text_of(events) == said
        assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_STOP
    else:
        position, stop = found
        assert text_of(events) == said[: position + len(stop) * include]
        assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_STOP_SEQUENCE
        assert finish_of(events).stop_match == StopMatch(text=stop)
        kept = [*generation.outputs[0].token_ids]
        assert stop in text.tokenizer.decode(kept, skip_special_tokens=True)
        assert stop not in text.tokenizer.decode(kept[:-1], skip_special_tokens=True)
        assert kept == engine.requests[0].outputs[0].token_ids[: len(kept)]
    assert generation.outputs[0].text == text_of(events)
    told = [token_id for delta in deltas_of(events) for token_id in delta.token_ids]
    assert told == [*generation.outputs[0].token_ids]
    assert generation.usage.output_tokens == len(told)


async def test_stop_string_in_the_prompt_has_no_effect(text: TextSide, offload: Offload) -> None:
    bench, _ = bench_saying("fine then", text, offload)
    prompt_ids = text.tokenizer.encode(
        "never say HALT", add_special_tokens=False, allow_special_tokens=False
    )

    generation = bench.start(
        GenerationConfig(stop=StopConditions(stop_strings=["HALT"])), prompt_ids=prompt_ids
    )

    assert text_of([event async for event in generation.events()]) == "fine then"


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("said", "stops"),
    [("UNO DUE TRE", ["TREMOLO"]), ("amount <", []), ("i < j <t", ["<tool_call>"])],
)
async def test_what_was_held_back_is_not_lost_at_the_end(
    said: str, stops: list[str], cut: bool, text: TextSide, offload: Offload
) -> None:
    bench, _ = bench_saying(said, text, offload)
    stop = StopConditions(stop_strings=stops)
    if cut:
        stop.max_output_tokens = len(
            text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
        )

    _, events = await bench.run(GenerationConfig(stop=stop))

    reason = "FINISH_REASON_MAX_OUTPUT_TOKENS" if cut else "FINISH_REASON_STOP"
    assert text_of(events) == said
    assert FinishReason.Name(finish_of(events).finish_reason) == reason


@pytest.mark.parametrize("shown", [False, True])
async def test_end_token_shows_only_on_request(
    shown: bool, text: TextSide, offload: Offload
) -> None:
    bench, engine = bench_saying("Hello there<|im_end|>", text, offload)

    generation, events = await bench.run(
        GenerationConfig(output=OutputOptions(special_tokens=shown))
    )

    said = engine.requests[0].outputs[0].token_ids
    assert text_of(events) == text.tokenizer.decode(said, skip_special_tokens=not shown)
    assert ("<|im_end|>" in text_of(events)) == shown
    assert finish_of(events).stop_match == StopMatch(token_id=said[-1])
    assert [*generation.outputs[0].token_ids] == said


@pytest.mark.parametrize("shown", [False, True])
async def test_stop_token_of_ordinary_text_shows_only_on_request(
    shown: bool, text: TextSide, offload: Offload
) -> None:
    bench, _ = bench_saying("Hello there you", text, offload)
    said = text.tokenizer.encode(
        "Hello there you", add_special_tokens=False, allow_special_tokens=False
    )

    _, events = await bench.run(
        GenerationConfig(
            stop=StopConditions(stop_token_ids=[said[-1]]),
            output=OutputOptions(special_tokens=shown),
        )
    )

    kept = said if shown else said[:-1]
    assert text_of(events) == text.tokenizer.decode(kept, skip_special_tokens=True)
    assert finish_of(events).finish_reason == FinishReason.FINISH_REASON_STOP_SEQUENCE
    assert finish_of(events).stop_match == StopMatch(token_id=said[-1])


async def test_engine_is_told_of_a_stop_string_once(text: TextSide, offload: Offload) -> None:
    bench, engine = bench_saying("one two HALT and so on for a long while", text, offload)

    generation, _ = await bench.run(GenerationConfig(stop=StopConditions(stop_strings=["HALT"])))

    (request,) = engine.requests
    assert request.outputs[0].finish_asked
    assert engine.num_running == engine.num_waiting == 0
    assert len(generation.outputs[0].token_ids) < len(request.outputs[0].token_ids)


async def test_text_arrives_in_pieces_and_bursts_are_joined(
    text: TextSide, offload: Offload
) -> None:
    said = "one two three four five six seven"
    bench, engine = bench_saying(said, text, offload)
    engine.hold()
    generation = bench.start()
    events = generation.events()

    engine.step(3)
    seen = [await anext(events), await anext(events)]
    engine.step(1)
    seen.append(await anext(events))
    engine.release()
    seen += [event async for event in events]

    num_tokens = len(
        text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
    )
    assert text_of(seen) == said
    assert 2 <= len(deltas_of(seen)) <= num_tokens - 2


async def test_output_that_stopped_stays_ended_while_others_go_on(
    text: TextSide, offload: Offload
) -> None:
    said = {
        0: "one two HALT and so on and on and on",
        1: "one two three four five six seven eight nine ten",
    }

    def script(_: GenerationRequest, output_index: int) -> list[int]:
        return text.tokenizer.encode(
            said[output_index], add_special_tokens=False, allow_special_tokens=False
        )

    engine = FakeEngine(script=script, num_late_tokens=3)
    bench = Bench.of(served_model(text, engine), offload)

    generation, events = await bench.run(
        GenerationConfig(stop=StopConditions(stop_strings=["HALT"])), num_outputs=2
    )

    assert [text_of(events, index) for index in (0, 1)] == ["one two ", said[1]]
    assert generation.usage.output_tokens == sum(len(o.token_ids) for o in generation.outputs)


async def test_stop_in_a_burst_of_many_deltas_ends_them(text: TextSide, offload: Offload) -> None:
    bench, engine = bench_saying("HALT" + " one" * 220, text, offload)
    engine.hold()
    config = GenerationConfig(
        stop=StopConditions(stop_strings=["HALT"]), output=OutputOptions(top_logprobs=20)
    )
    generation = bench.start(config)

    engine.step(220)
    events = [event async for event in generation.events()]

    check_events(events, 1)
    assert text_of(events) == ""
    assert generation.usage.output_tokens == len(
        [entry for delta in deltas_of(events) for entry in delta.logprobs]
    )


async def test_stopped_output_completes_although_the_engine_does_not_confirm(
    text: TextSide, offload: Offload
) -> None:
    token_ids = text.tokenizer.encode(
        "HALT here", add_special_tokens=False, allow_special_tokens=False
    )
    engine = FakeEngine(script=fixed_ids(*token_ids), deaf=True)
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(GenerationConfig(stop=StopConditions(stop_strings=["HALT"])))

    engine.step(len(token_ids))
    events = [event async for event in generation.events()]

    check_events(events, 1)
    assert not engine.requests[0].ended
    assert bench.generator.admission.num_running == 0


async def test_stop_string_that_only_the_end_completes_is_found_at_a_cancellation_too(
    text: TextSide, offload: Offload
) -> None:
    half = next(i for i in range(1000) if text.tokenizer.token_bytes(i) == b"\xe4")
    engine = FakeEngine(script=fixed_ids(half))
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(GenerationConfig(stop=StopConditions(stop_strings=["\ufffd"])))

    engine.step(1)
    generation.cancel()
    events = [event async for event in generation.events()]

    check_events(events, 1)
    assert text_of(events) == ""
    assert finish_of(events).stop_match == StopMatch(text="\ufffd")
