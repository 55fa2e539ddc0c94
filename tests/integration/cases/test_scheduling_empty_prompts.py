"""Prompts of nothing: refused by field, or a prompt where the tokenizer starts every text."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import StartTurn
from antiphon.v1.types_pb2 import Conversation, Prompt, TokenIds

from support.answers import ask
from support.canary import Canary
from support.real_server import scripted_engine, scripted_server
from support.refusals import refusal_of, refusal_of_both
from support.scripted_engine import Script
from support.server import RunningServer
from support.session_rows import user
from support.tiny_tokenizers import save_byte_fallback_tokenizer, save_byte_level_tokenizer
from support.turn_runs import events_of_turn, greedy, new_session, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = greedy(3)
ANSWER = [320, 321, 322]
INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canaries(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Canary]]:
    """Of two servers of one engine, by whether their tokenizers put a token before every text."""
    directory = tmp_path_factory.mktemp("empty")
    plain = save_byte_level_tokenizer(directory / "plain")
    starting = save_byte_fallback_tokenizer(directory / "starting")
    settings = json.loads((starting / "tokenizer_config.json").read_text())
    settings["add_bos_token"] = True
    (starting / "tokenizer_config.json").write_text(json.dumps(settings))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            scripted_engine(directory, Script(texts={"*": ANSWER}))
        )
        found = {}
        for kind, tokenizer in (("without_start_token", plain), ("with_start_token", starting)):
            server = await stack.enter_async_context(scripted_server(tokenizer, tokenizer, engine))
            found[kind] = await Canary.of(server)
        yield found


@pytest_asyncio.fixture(loop_scope="module", params=["without_start_token", "with_start_token"])
async def server(
    canaries: dict[str, Canary], request: pytest.FixtureRequest
) -> AsyncIterator[RunningServer]:
    """Each of the servers; each test leaves it as it was."""
    yield canaries[request.param].server
    await canaries[request.param].check()


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (Prompt(token_ids=TokenIds()), "prompt.token_ids.ids"),
        (Prompt(conversation=Conversation()), "prompt.conversation.items"),
        (Prompt(), "prompt"),
    ],
)
async def test_prompt_of_nothing_is_refused_by_field(
    server: RunningServer, prompt: Prompt, field: str
) -> None:
    refusal = await refusal_of_both(server, GenerateRequest(prompt=prompt, config=CONFIG))

    assert (refusal.code, refusal.reason) == INVALID
    assert refusal.message.startswith(f"{field}: ")


async def test_empty_text_is_refused_without_a_start_token(canaries: dict[str, Canary]) -> None:
    server = canaries["without_start_token"].server

    refusal = await refusal_of_both(server, GenerateRequest(prompt=Prompt(text=""), config=CONFIG))

    assert (refusal.code, refusal.reason) == INVALID
    assert refusal.message.startswith("prompt.text: ")
    await canaries["without_start_token"].check()


async def test_empty_text_is_the_start_token_where_there_is_one(
    canaries: dict[str, Canary],
) -> None:
    server = canaries["with_start_token"].server

    answer = await ask(server, GenerateRequest(prompt=Prompt(text=""), config=CONFIG))

    (token_id,) = answer.prompt_token_ids
    assert server.model.tokenizer.token_bytes(token_id) == b"<s>"
    assert list(answer.output.token_ids) == ANSWER
    await canaries["with_start_token"].check()


@pytest.mark.parametrize("blank", ["", " \n\t", "\n"])
async def test_blank_question_and_blank_text_are_answered(
    server: RunningServer, blank: str
) -> None:
    prompts = [Prompt(conversation=Conversation(items=[user(blank)]))]
    if blank:
        prompts.append(Prompt(text=blank))
    for prompt in prompts:
        answer = await ask(server, GenerateRequest(prompt=prompt, config=CONFIG))

        assert list(answer.output.token_ids) == ANSWER
        assert answer.usage.prompt_tokens == len(answer.prompt_token_ids) >= 1

    turn = await run_turn(server, await new_session(server), [user(blank)], CONFIG)

    assert turn.output_ids == ANSWER


async def test_turn_of_nothing_is_refused_and_leaves_the_session_usable(
    server: RunningServer,
) -> None:
    session = await new_session(server)
    for _ in range(2):
        refusal = await refusal_of(
            lambda: events_of_turn(server, session, StartTurn(config=CONFIG))
        )

        assert (refusal.code, refusal.reason) == INVALID
        assert "items" in refusal.message
        assert (await run_turn(server, session, [user("")], CONFIG)).output_ids == ANSWER
