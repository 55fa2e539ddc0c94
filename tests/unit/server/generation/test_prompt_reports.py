"""What is told of prompts: their token ids, and how likely the model found them."""

import asyncio
from array import array
from collections.abc import Sequence

import grpc
import msgspec
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    PositionLogprobs,
    Prompt,
    PromptPart,
    StopConditions,
    TokenIds,
)

from antiphon_engine.api.handle import EngineState
from antiphon_engine.api.messages import (
    GenerationRequest,
    SamplingParams,
    StopParams,
)
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_server.endurance import Attempts, Endurance
from antiphon_server.generation import Event
from antiphon_server.generation_output import NewTokens
from antiphon_server.offload import Offload
from antiphon_server.prompt_report import MAX_PART_BYTES, PromptReport
from antiphon_server.validation import ResolvedConfig
from support.fake_engine import FACTS, FakeEngine, ids_from_prompt
from support.fake_prompt_logprobs import fake_prompt_logprobs, foretold
from support.generations import Bench, check_events, deltas_of
from support.inference_server import inference_server
from support.served_models import TextSide, served_model

PROMPT = [(37 * i + 5) % 200 for i in range(30)]


def asking(num_top: int | None = 2, *, max_tokens: int = 3, ids: bool = False) -> GenerationConfig:
    return GenerationConfig(
        stop=StopConditions(max_output_tokens=max_tokens, ignore_eos=True),
        output=OutputOptions(prompt_logprobs=True, top_logprobs=num_top, prompt_token_ids=ids),
    )


def parts_of(events: Sequence[Event]) -> list[PromptPart]:
    """The report among a generation's events, which must be where it belongs."""
    kinds = [type(event) for event in events]
    parts = [event for event in events if isinstance(event, PromptPart)]
    assert kinds[1 : 1 + len(parts)] == [PromptPart] * len(parts), "not right behind the start"
    return parts


def check_report(
    parts: Sequence[PromptPart], prompt: Sequence[int], *, num_top: int, ids: bool = False
) -> None:
    at = 0
    for part in parts:
        assert part.first_position == at
        assert list(part.token_ids) == (prompt[at : at + len(part.logprobs)] if ids else [])
        at += len(part.logprobs)
    entries = [entry for part in parts for entry in part.logprobs]
    check_entries(entries[1:], prompt[1:], num_top=num_top)
    assert entries[0] == PositionLogprobs()


def check_entries(
    entries: Sequence[PositionLogprobs], token_ids: Sequence[int], *, num_top: int
) -> None:
    assert [entry.chosen.token_id for entry in entries] == list(token_ids)
    assert [entry.chosen.logprob for entry in entries] == [foretold(i) for i in token_ids]
    for entry, token_id in zip(entries, token_ids, strict=True):
        assert [top.token_id for top in entry.top] == [token_id + i for i in range(num_top)]
        assert [top.logprob for top in entry.top] == [
            foretold(token_id) - i for i in range(num_top)
        ]


async def run(bench: Bench, config: GenerationConfig, **asked: object) -> list[Event]:
    generation = bench.start(config, prompt_ids=PROMPT, **asked)  # type: ignore[arg-type]
    return [event async for event in generation.events()]


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 100])
async def test_a_report_comes_whole_before_the_first_token(
    chunk_tokens: int, ids: bool, text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine(chunk_tokens=chunk_tokens)
    bench = Bench.of(served_model(text, engine), offload)

    events = await run(bench, asking(ids=ids), num_outputs=2)

    check_report(parts_of(events), PROMPT, num_top=2, ids=ids)
    check_events([event for event in events if not isinstance(event, PromptPart)], 2)


async def test_prompts_alone_can_be_told_of(text: TextSide, offload: Offload) -> None:
    bench = Bench.of(served_model(text, FakeEngine()), offload)

    events = await run(bench, asking(None))

    check_report(parts_of(events), PROMPT, num_top=0)
    assert not [entry for delta in deltas_of(events) for entry in delta.logprobs]


async def test_a_first_token_is_foretold_by_nothing(text: TextSide, offload: Offload) -> None:
    bench = Bench.of(served_model(text, FakeEngine()), offload)
    generation = bench.start(asking(ids=True), prompt_ids=[5])

    events = [event async for event in generation.events()]

    assert parts_of(events) == [PromptPart(token_ids=[5], logprobs=[PositionLogprobs()])]


async def test_output_from_before_is_told_behind_the_report(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine(chunk_tokens=8)
    bench = Bench.of(served_model(text, engine), offload)
    prompt = array("i", PROMPT).tobytes()
    stop = StopParams(max_output_tokens=9)
    request = GenerationRequest(prompt=prompt, sampling=SamplingParams(seed=7), stop=stop)
    script = iter(ids_from_prompt(request, 0))
    before = [next(script) for _ in range(4)]

    events = await run(bench, asking(None, max_tokens=9), resumed=NewTokens(token_ids=before))

    parts = [event for event in events if isinstance(event, PromptPart)]
    first_delta = next(i for i, event in enumerate(events) if event in deltas_of(events))
    assert events.index(parts[-1]) < first_delta
    check_report(parts, PROMPT, num_top=0)


@pytest.mark.parametrize("num_steps", [1, 2, 4])
async def test_an_engines_death_within_a_prompt_does_not_show(
    num_steps: int, text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine(chunk_tokens=8)
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    endurance = Endurance(attempts=Attempts(most=3), wait_s=10.0)
    running = asyncio.create_task(run(bench, asking(), endurance=endurance))
    await asyncio.sleep(0)
    engine.step(num_steps)
    engine.set_state(EngineState.DOWN)
    await asyncio.sleep(0.01)
    engine.set_state(EngineState.READY)
    engine.release()

    events = await running

    check_report(parts_of(events), PROMPT, num_top=2)
    first, second = (stream.request for stream in engine.requests)
    assert first.num_told_positions == 0
    assert second.num_told_positions == min(1 + 8 * num_steps, len(PROMPT))


async def test_a_generation_that_is_cancelled_within_its_prompt_ends(
    text: TextSide, offload: Offload
) -> None:
    engine = FakeEngine(chunk_tokens=8)
    engine.hold()
    bench = Bench.of(served_model(text, engine), offload)
    generation = bench.start(asking(), prompt_ids=PROMPT)
    reading = asyncio.create_task(_read(generation.events()))
    await asyncio.sleep(0)
    engine.step()
    await asyncio.sleep(0.01)
    generation.cancel()

    events = await reading

    told = parts_of(events)
    assert sum(len(part.logprobs) for part in told) == 9
    check_events([event for event in events if not isinstance(event, PromptPart)], 1)


async def _read(events: object) -> list[Event]:
    return [event async for event in events]  # type: ignore[attr-defined]


class LongTokens:
    """A tokenizer whose tokens are long."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes(700 + token_id % 7)


def test_every_part_keeps_to_the_bound() -> None:
    prompt = list(range(1000))
    config = ResolvedConfig(
        sampling=SamplingParams(seed=0),
        stop=StopParams(max_output_tokens=1),
        fills_context=False,
        prompt_logprobs=20,
        want_prompt_token_ids=True,
        effective=GenerationConfig(),
    )
    asked = GenerationRequest(
        prompt=array("i", prompt).tobytes(),
        sampling=config.sampling,
        stop=config.stop,
        prompt_logprobs=20,
    )
    report = PromptReport(prompt, config, LongTokens())
    news: list[PromptLogprobs] = [fake_prompt_logprobs(1, asked, 1, len(prompt))]

    pieces = list(report.cut(news))
    parts = [part for piece in pieces for part in report.parts_of(piece)]

    assert len(parts) > len(pieces) > 1
    assert max(part.ByteSize() for part in parts) <= MAX_PART_BYTES
    check_report(parts, prompt, num_top=20, ids=True)
    assert report.is_complete


async def test_an_answer_has_what_a_stream_has_but_the_empty_entry(
    text: TextSide, offload: Offload
) -> None:
    model = served_model(text, FakeEngine(chunk_tokens=9))
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=PROMPT)), config=asking(ids=True), num_outputs=2
    )
    async with inference_server(model, offload) as server:
        answer = await server.stub.Generate(request)
        responses: list[StreamGenerateResponse] = [
            response async for response in server.stub.StreamGenerate(request)
        ]

    parts = [event.prompt_part for event in responses if event.HasField("prompt_part")]
    check_report(parts, PROMPT, num_top=2, ids=True)
    assert len(parts) > 1
    assert list(answer.prompt_token_ids) == PROMPT
    check_entries(answer.prompt_logprobs, PROMPT[1:], num_top=2)


async def test_an_answer_that_grows_too_large_is_refused_before_its_prompt_is_through(
    text: TextSide, offload: Offload
) -> None:
    facts = msgspec.structs.replace(FACTS, context_tokens=40_000, kv_cache_tokens=40_000)
    engine = FakeEngine(facts=facts, chunk_tokens=1000)
    request = GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=[7] * 30_000)), config=asking(20)
    )
    async with inference_server(served_model(text, engine), offload) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.stub.Generate(request)

    assert server.reason_of(caught.value) == "RESPONSE_TOO_LARGE"
    assert engine.requests[0].next_told < 25_000
