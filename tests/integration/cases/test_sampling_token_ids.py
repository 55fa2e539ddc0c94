"""Token ids at the edge of the vocabulary and beyond it, with neighbours that must not notice."""

import asyncio

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import CreateSessionRequest, Session
from antiphon.v1.types_pb2 import GenerationConfig, SamplingParams, StopConditions

from support.answers import ask, ask_in_session
from support.sampling_calls import (
    PROMPT,
    RunningCall,
    check_refused,
    config_for,
    request_for,
    token_ids_of,
)
from support.server import RunningServer, details_of
from support.tiny_checkpoints import VOCABULARY_SIZE
from support.tiny_tokenizers import VOCABULARY_SIZE as TOKENIZER_SIZE

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEGAL = [0, TOKENIZER_SIZE - 1, TOKENIZER_SIZE, VOCABULARY_SIZE - 1]
"""The model has more token ids than its tokenizer."""
ILLEGAL = [VOCABULARY_SIZE, VOCABULARY_SIZE + 500, 2**31 - 1, 2**31, 2**32 - 1]
GREEDY = SamplingParams(temperature=0)


def biased(token_id: int, bias: float) -> GenerateRequest:
    return request_for(SamplingParams(temperature=0, logit_bias={5: 1.0, token_id: bias}))


def stopping(token_id: int, num_least: int) -> GenerateRequest:
    stop = StopConditions(
        max_output_tokens=24, min_output_tokens=num_least, stop_token_ids=[5, token_id]
    )
    return request_for(GREEDY, stop=stop)


def illegal_requests(token_id: int) -> dict[str, tuple[GenerateRequest, str]]:
    """Returns requests with an id in each field that takes ids, and how that is named."""
    return {
        "bias": (biased(token_id, 100), f"sampling.logit_bias[{token_id}]"),
        "ban": (biased(token_id, -100), f"sampling.logit_bias[{token_id}]"),
        "stop": (stopping(token_id, 0), "stop.stop_token_ids[1]"),
        "late_stop": (stopping(token_id, 8), "stop.stop_token_ids[1]"),
    }


@pytest.mark.parametrize("token_id", ILLEGAL)
async def test_id_beyond_the_vocabulary_is_refused_in_every_field(
    tiny: RunningServer, token_id: int
) -> None:
    for request, field in illegal_requests(token_id).values():
        await check_refused(tiny, request, field)


@pytest.mark.parametrize("token_id", ILLEGAL)
async def test_id_beyond_the_vocabulary_is_refused_in_prompts_and_defaults(
    tiny: RunningServer, token_id: int
) -> None:
    prompt = request_for(GREEDY, prompt=[*PROMPT, token_id])
    defaults = Session(
        defaults=GenerationConfig(sampling=SamplingParams(logit_bias={token_id: 1.0}))
    )
    for call, field in (
        (tiny.inference.Generate(prompt), f"prompt.token_ids.ids[{len(PROMPT)}]"),
        (tiny.inference.StreamGenerate(prompt).read(), f"prompt.token_ids.ids[{len(PROMPT)}]"),
        (
            tiny.sessions.CreateSession(CreateSessionRequest(session=defaults)),
            f"session.defaults.sampling.logit_bias[{token_id}]",
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == field
        assert str(VOCABULARY_SIZE) in violation.description


@pytest.mark.parametrize("token_id", LEGAL)
async def test_id_of_the_vocabulary_works_in_every_field(
    tiny: RunningServer, token_id: int
) -> None:
    lifted = await ask(tiny, biased(token_id, 100))
    banned = await ask(tiny, biased(token_id, -100))
    stopped_request = stopping(token_id, 8)
    stopped_request.config.sampling.logit_bias[token_id] = 100
    stopped = await ask(tiny, stopped_request)
    continued = await ask(tiny, request_for(GREEDY, prompt=[*PROMPT, token_id]))
    _, turn = await ask_in_session(tiny, "Hello.", biased(token_id, 100).config)

    assert lifted.output.token_ids == [token_id] * 24
    assert token_id not in banned.output.token_ids
    assert token_id not in stopped.output.token_ids[:8]
    assert stopped.output.token_ids[8:] == [token_id]
    assert stopped.output.stop_match.token_id == token_id
    assert len(continued.output.token_ids) == 24
    assert turn.output.token_ids == [token_id] * 24
    if token_id >= TOKENIZER_SIZE:
        assert lifted.text == turn.output.text == ""


async def test_neighbours_do_not_notice_ids_at_the_edge_and_beyond_it(tiny: RunningServer) -> None:
    plain = [
        request_for(GREEDY, prompt=[*PROMPT[: 30 + i], 500 + i], num_tokens=150) for i in range(4)
    ]
    alone = [await token_ids_of(tiny, request) for request in plain]
    running = [RunningCall(tiny, request) for request in plain]
    for call in running:
        await call.begun()

    legal = [
        request
        for token_id in LEGAL
        for request in (biased(token_id, 100), biased(token_id, -100), stopping(token_id, 8))
    ]
    illegal = [case for token_id in ILLEGAL for case in illegal_requests(token_id).values()]
    await asyncio.gather(
        *(token_ids_of(tiny, request) for request in legal),
        *(check_refused(tiny, request, field) for request, field in illegal),
    )

    assert [await call.token_ids() for call in running] == alone


@pytest.mark.parametrize("token_id", [-1, 2**32])
async def test_contract_itself_has_no_place_for_other_ids(token_id: int) -> None:
    with pytest.raises(ValueError, match="range"):
        config_for(SamplingParams(logit_bias={token_id: 1.0}))
    with pytest.raises(ValueError, match="range"):
        StopConditions(stop_token_ids=[token_id])
