"""Outputs that were whole as their server ended."""

import pytest
from antiphon.v1.types_pb2 import GenerationConfig, OutputOptions, StopConditions

from antiphon_engine.api import messages
from antiphon_engine.api.handle import EngineState
from antiphon_server.endurance import Attempts, Endurance
from antiphon_server.generation_output import NewTokens
from antiphon_server.offload import Offload
from support.fake_engine import FakeEngine, fixed_ids
from support.generations import Bench, check_events, finish_of, text_of
from support.served_models import TextSide, served_model


@pytest.mark.parametrize(
    ("stop", "ended"),
    [
        (StopConditions(), messages.FinishReason.END_ID),
        (StopConditions(max_output_tokens=4), messages.FinishReason.MAX_OUTPUT_TOKENS),
    ],
)
async def test_output_that_was_kept_whole_needs_no_engine(
    stop: StopConditions, ended: messages.FinishReason, text: TextSide, offload: Offload
) -> None:
    said = "plain words, one behind another"
    ids = text.tokenizer.encode(said, add_special_tokens=False, allow_special_tokens=False)
    config = GenerationConfig(stop=stop, output=OutputOptions(token_ids=True, top_logprobs=2))
    engine = FakeEngine(script=fixed_ids(*ids))
    bench = Bench.of(served_model(text, engine), offload)
    generation, events = await bench.run(config)
    record = generation.outputs[0]
    kept = NewTokens(token_ids=record.token_ids, logprobs=record.logprobs, ended=ended)
    engine.set_state(EngineState.DOWN)

    endurance = Endurance(attempts=Attempts(most=3), wait_s=10.0, was_admitted=True)
    again = bench.start(config, resumed=kept, endurance=endurance)
    told = [event async for event in again.events()]

    check_events(told, 1)
    assert text_of(told) == text_of(events)
    assert finish_of(told) == finish_of(events)
    assert again.outputs[0].token_ids == record.token_ids
    assert again.outputs[0].logprobs == record.logprobs
    assert len(engine.requests) == 1
    assert bench.generator.admission.num_running == 0
