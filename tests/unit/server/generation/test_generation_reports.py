"""Token ids and log-probabilities: in step with the text, and in bounded pieces."""

import math

import pytest
from antiphon.v1.types_pb2 import Delta, GenerationConfig, OutputOptions, StopConditions

from antiphon_server.generation_output import MAX_DELTA_ENTRIES, NewTokens
from antiphon_server.offload import Offload
from support.fake_engine import FakeEngine, fixed_ids, logprob_of
from support.generations import Bench, check_events, deltas_of, text_of
from support.served_models import TextSide, served_model

NEVER = "j" * 40


def positions_of(deltas: list[Delta]) -> list[tuple[int, float, bytes]]:
    return [
        (entry.chosen.token_id, entry.chosen.logprob, entry.chosen.token)
        for delta in deltas
        for entry in delta.logprobs
    ]


@pytest.mark.parametrize("stops", [[], [NEVER]])
@pytest.mark.parametrize("held", [False, True])
async def test_entries_decode_to_the_text_and_count_as_the_usage(
    stops: list[str], held: bool, text: TextSide, offload: Offload
) -> None:
    said = "numbers: one, two, three — and Ω, 你好, in smaller pieces jjj"
    token_ids = text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
    engine = FakeEngine(script=fixed_ids(*token_ids))
    bench = Bench.of(served_model(text, engine), offload)
    config = GenerationConfig(
        stop=StopConditions(stop_strings=stops, max_output_tokens=len(token_ids)),
        output=OutputOptions(token_ids=True, top_logprobs=3),
    )
    if held:
        engine.hold()

    generation = bench.start(config)
    engine.step(len(token_ids) if held else 0)
    events = [event async for event in generation.events()]

    check_events(events, 1)
    deltas = deltas_of(events)
    told = [token_id for delta in deltas for token_id in delta.token_ids]
    assert text_of(events) == said
    assert told == token_ids
    assert b"".join(token for _, _, token in positions_of(deltas)).decode() == said
    assert [token_id for token_id, _, _ in positions_of(deltas)] == token_ids
    assert len(told) == generation.usage.output_tokens
    for delta in deltas:
        assert len(delta.logprobs) == len(delta.token_ids)
    for token_id, logprob, _ in positions_of(deltas):
        assert logprob == logprob_of(token_id) <= 0


async def test_chosen_token_is_among_the_likeliest_and_those_are_in_order(
    text: TextSide, offload: Offload
) -> None:
    bench = Bench.of(served_model(text, FakeEngine()), offload)
    config = GenerationConfig(
        stop=StopConditions(max_output_tokens=5), output=OutputOptions(top_logprobs=3)
    )

    _, events = await bench.run(config)

    entries = [entry for delta in deltas_of(events) for entry in delta.logprobs]
    assert len(entries) == 5
    for entry in entries:
        values = [top.logprob for top in entry.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert entry.chosen in entry.top
        assert not any(math.isnan(value) for value in values)


async def test_nothing_is_reported_that_was_not_asked_for(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine()
    bench = Bench.of(served_model(text, engine), offload)

    _, events = await bench.run(GenerationConfig(stop=StopConditions(max_output_tokens=20)))

    assert not any(delta.token_ids or delta.logprobs for delta in deltas_of(events))
    assert engine.requests[0].request.top_logprobs is None


async def test_tokens_without_text_are_told_with_the_last_piece(
    text: TextSide, offload: Offload
) -> None:
    silent = sorted(text.tokenizer.special_ids - text.tokenizer.end_ids)[0]
    engine = FakeEngine(script=fixed_ids(silent, silent))
    bench = Bench.of(served_model(text, engine), offload)

    generation, events = await bench.run(GenerationConfig(output=OutputOptions(token_ids=True)))

    (delta,) = deltas_of(events)
    assert delta.text == ""
    assert [*delta.token_ids] == [*generation.outputs[0].token_ids]
    assert generation.usage.output_tokens == 3


async def test_burst_is_cut_into_deltas_of_bounded_size(
    byte_level: TextSide, offload: Offload
) -> None:
    engine = FakeEngine()
    bench = Bench.of(served_model(byte_level, engine), offload)
    engine.hold()
    config = GenerationConfig(
        stop=StopConditions(max_output_tokens=250, ignore_eos=True),
        output=OutputOptions(token_ids=True, top_logprobs=20),
    )
    generation = bench.start(config)

    engine.step(250)
    events = [event async for event in generation.events()]

    deltas = deltas_of(events)
    bound = MAX_DELTA_ENTRIES // 22
    assert len(deltas) >= 2
    assert max(len(delta.logprobs) for delta in deltas) <= bound
    assert sum(len(delta.logprobs) for delta in deltas) == 250
    assert [*generation.outputs[0].token_ids] == [t for d in deltas for t in d.token_ids]
    assert offload.num_pending == 0


async def test_long_silence_is_cut_into_deltas_of_bounded_size(
    text: TextSide, offload: Offload
) -> None:
    silent = sorted(text.tokenizer.special_ids - text.tokenizer.end_ids)[0]
    (shown,) = text.tokenizer.encode("x", add_special_tokens=False, allow_special_tokens=False)
    engine = FakeEngine(script=fixed_ids(*[silent] * 240, shown))
    bench = Bench.of(served_model(text, engine), offload)

    generation, events = await bench.run(GenerationConfig(output=OutputOptions(top_logprobs=20)))

    deltas = deltas_of(events)
    told = [entry.chosen.token_id for delta in deltas for entry in delta.logprobs]
    assert text_of(events) == "x"
    assert told == [*generation.outputs[0].token_ids]
    assert max(len(delta.logprobs) for delta in deltas) <= MAX_DELTA_ENTRIES // 22


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 9])
def test_split_keeps_everything_in_order_and_the_end_last(num_tokens: int) -> None:
    whole = NewTokens(token_ids=list(range(num_tokens)))

    parts = list(whole.split(3))

    assert [t for part in parts for t in part.token_ids] == list(range(num_tokens))
    assert all(len(part.token_ids) <= 3 for part in parts)
    assert len(parts) == max(1, -(-num_tokens // 3))
