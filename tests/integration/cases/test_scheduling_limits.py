"""Prompts at the limit of the context: what just fits is answered, what doesn't is refused."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import StartTurn
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    Item,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import ask
from support.canary import Canary
from support.real_server import real_server
from support.refusals import Refusal, refusal_of, refusal_of_both
from support.server import RunningServer
from support.session_rows import user
from support.tiny_checkpoints import prompts
from support.turn_runs import events_of_turn, new_session, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 256
FULL = FinishReason.FINISH_REASON_CONTEXT_FULL
SPENT = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path
) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("limits")
    settings = [f"engine.max_context_tokens={LIMIT}", "engine.block_tokens=16"]
    async with real_server(directory, tiny_checkpoint, settings=settings) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    """A server of short texts; each test leaves it as it was."""
    yield canary.server
    await canary.check()


def config(max_output_tokens: int | None) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_output_tokens=max_output_tokens, ignore_eos=True),
        output=OutputOptions(token_ids=True, prompt_token_ids=True),
    )


def of_ids(num_tokens: int) -> Prompt:
    (ids,) = prompts(1, least=num_tokens, most=num_tokens, seed=num_tokens)
    return Prompt(token_ids=TokenIds(ids=ids))


def item_of(server: RunningServer, num_tokens: int) -> Item:
    """Returns a question whose conversation has just so many tokens."""
    render = server.model.renderer.render_conversation
    num_empty = len(render([user("")]).token_ids)
    item = user(" the" * (num_tokens - num_empty))
    assert len(render([item]).token_ids) == num_tokens
    return item


def assert_names_the_figures(refusal: Refusal, *, prompt_tokens: int, asked: int) -> None:
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "CONTEXT_LENGTH_EXCEEDED"
    figures = {"limit": LIMIT, "prompt": prompt_tokens, "asked": asked}
    assert refusal.metadata == {key: str(value) for key, value in figures.items()}
    assert set(map(int, re.findall(r"\d+", refusal.message))) == set(figures.values())


@pytest.mark.parametrize(
    ("prompt_tokens", "asked", "num_output", "reason"),
    [
        (LIMIT - 2, 1, 1, SPENT),
        (LIMIT - 2, 2, 2, SPENT),
        (LIMIT - 2, None, 2, FULL),
        (LIMIT - 1, 1, 1, SPENT),
        (LIMIT - 1, None, 1, FULL),
        (100, LIMIT - 100, LIMIT - 100, SPENT),
        (100, None, LIMIT - 100, FULL),
        (1, LIMIT - 1, LIMIT - 1, SPENT),
    ],
)
async def test_request_that_just_fits_is_answered_up_to_the_limit(
    server: RunningServer, prompt_tokens: int, asked: int | None, num_output: int, reason: int
) -> None:
    request = GenerateRequest(prompt=of_ids(prompt_tokens), config=config(asked))

    answer = await ask(server, request)

    assert (len(answer.output.token_ids), answer.output.finish_reason) == (num_output, reason)
    assert answer.usage.prompt_tokens == prompt_tokens
    if prompt_tokens == 1:
        return
    turn = await run_turn(
        server, await new_session(server), [item_of(server, prompt_tokens)], config(asked)
    )
    assert (len(turn.output_ids), turn.finish_reason) == (num_output, reason)
    assert turn.usage.prompt_tokens == prompt_tokens


@pytest.mark.parametrize(
    ("prompt_tokens", "asked"),
    [
        (LIMIT - 1, 2),
        (LIMIT, 1),
        (LIMIT, 2),
        (LIMIT, None),
        (LIMIT + 1, 1),
        (LIMIT + 1, None),
        (100, LIMIT - 99),
        (1, LIMIT),
    ],
)
async def test_request_that_does_not_fit_is_refused_with_the_figures(
    server: RunningServer, prompt_tokens: int, asked: int | None
) -> None:
    request = GenerateRequest(prompt=of_ids(prompt_tokens), config=config(asked))

    refusal = await refusal_of_both(server, request)

    assert_names_the_figures(refusal, prompt_tokens=prompt_tokens, asked=asked or 1)
    if prompt_tokens == 1:
        return
    session = await new_session(server)
    start = StartTurn(items=[item_of(server, prompt_tokens)], config=config(asked))
    refusal = await refusal_of(lambda: events_of_turn(server, session, start))
    assert_names_the_figures(refusal, prompt_tokens=prompt_tokens, asked=asked or 1)
    good = await run_turn(server, session, [item_of(server, 40)], config(2))
    assert len(good.output_ids) == 2


async def test_session_that_grew_to_the_limit_says_so_and_stays_as_it_is(
    server: RunningServer,
) -> None:
    session = await new_session(server)
    first = await run_turn(server, session, [item_of(server, 200)], config(None))
    assert (len(first.context), first.finish_reason) == (LIMIT, FULL)

    for _ in range(2):
        start = StartTurn(items=[user("and?")], config=config(1))
        refusal = await refusal_of(lambda start=start: events_of_turn(server, session, start))

        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refusal.reason == "SESSION_FULL"
        assert refusal.metadata["limit"] == str(LIMIT)
        assert int(refusal.metadata["prompt"]) > LIMIT
