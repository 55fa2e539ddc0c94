"""What a session's prompts stand on, with a real model, and what of it is computed again."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import grpc
import pytest
import pytest_asyncio
import torch
from antiphon.v1.admin_pb2 import FlushPrefixCacheRequest, GetEngineStatsRequest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    StartTurn,
)
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    Conversation,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    TokenIds,
)
from transformers import PreTrainedModel

from support.answers import LIMIT_S, ask
from support.canary import Canary
from support.chat_templates import EMPTY_THOUGHT_WHEN_LAST
from support.real_server import real_server
from support.server import RunningServer
from support.session_rows import user
from support.tiny_checkpoints import load_reference, make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import TurnRun, greedy, new_session, read_run, run_turn, said

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK_TOKENS = 8
CONFIG = greedy(20)
QUESTIONS = ("Good morning", "Name three rivers", "and a lake", "That is all, thank you")


CONSTRAINTS = (
    Constraint(regex="([a-f]{2}[0-9]-){3}"),
    Constraint(json_schema='{"type":"array","items":{"enum":[1,2,3]},"minItems":2,"maxItems":3}'),
    Constraint(choice=Choice(options=["so be it", "never"])),
    Constraint(ebnf='root ::= "<" [xyz]{2,4} ">"'),
)
"""One for each question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server, its canary, and the same model as the transformers library runs it."""

    server: RunningServer
    canary: Canary
    reference: PreTrainedModel

    def expected(self, prompt_ids: Sequence[int], num_tokens: int = 20) -> list[int]:
        """What the library generates behind a prompt."""
        torch.set_num_threads(1)
        with torch.inference_mode():
            ids = self.reference.generate(
                torch.tensor([list(prompt_ids)]),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=sorted(self.server.model.end_ids),
                pad_token_id=0,
            )
        return [int(token_id) for token_id in ids[0][len(prompt_ids) :]]

    async def flush(self) -> None:
        await self.server.admin.FlushPrefixCache(FlushPrefixCacheRequest(), timeout=LIMIT_S)

    async def num_prefilled(self) -> int:
        stats = await self.server.admin.GetEngineStats(GetEngineStatsRequest(), timeout=LIMIT_S)
        return int(stats.num_prefilled_tokens_total)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Its template puts an empty thought before the answer to come and drops it from past ones."""
    directory = tmp_path_factory.mktemp("histories")
    checkpoint = make_checkpoint(directory / "checkpoint")
    save_byte_level_tokenizer(checkpoint, chat_template=EMPTY_THOUGHT_WHEN_LAST)
    settings = [f"engine.block_tokens={BLOCK_TOKENS}"]
    async with real_server(directory, checkpoint, settings=settings) as server:
        yield Served(
            server=server,
            canary=await Canary.of(server),
            reference=load_reference(checkpoint),
        )


@pytest_asyncio.fixture(loop_scope="module")
async def served(one: Served) -> AsyncIterator[Served]:
    """The server without anything in its cache; each test leaves it as it was."""
    await one.flush()
    yield one
    await one.canary.check()


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // BLOCK_TOKENS * BLOCK_TOKENS


def num_common(prompt_ids: Sequence[int], earlier: Iterable[Sequence[int]]) -> int:
    """The longest beginning that a prompt has in common with what was computed before."""
    return max((_num_equal(prompt_ids, ids) for ids in earlier), default=0)


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


async def converse(server: RunningServer, session: str, questions: Sequence[str]) -> list[TurnRun]:
    """Runs turns one after another over one stream."""
    call = server.sessions.Converse(timeout=LIMIT_S)
    await call.write(ConverseRequest(open=OpenSession(name=session)))
    assert (await call.read()).HasField("opened")
    runs = []
    for question in questions:
        start = StartTurn(items=[user(question)], config=CONFIG)
        await call.write(ConverseRequest(generate=start))
        events = [(await call.read()).turn_event]
        while events[-1].WhichOneof("event") not in ("completed", "failed"):
            events.append((await call.read()).turn_event)
        runs.append(read_run(events))
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return runs


async def run_turns(server: RunningServer, session: str, questions: Sequence[str]) -> list[TurnRun]:
    """Runs turns one after another, each in a call of its own."""
    return [await run_turn(server, session, [user(text)], CONFIG) for text in questions]


@pytest.mark.parametrize("talk", [converse, run_turns])
async def test_kept_history_computes_only_what_is_new_and_answers_as_its_ids_do(
    served: Served, talk
) -> None:
    before = await served.num_prefilled()
    runs = await talk(served.server, await new_session(served.server), QUESTIONS)
    num_prefilled = await served.num_prefilled() - before

    context: list[int] = []
    for run in runs:
        assert run.prompt_ids[: len(context)] == context
        assert run.usage.prompt_tokens == len(run.prompt_ids) > len(context)
        cached = run.usage.cached_prompt_tokens
        assert whole_blocks(max(0, len(context) - 1)) <= cached <= len(context)
        context = run.context
    assert num_prefilled == sum(r.usage.prompt_tokens - r.usage.cached_prompt_tokens for r in runs)
    for run in runs:
        await served.flush()
        prompt = Prompt(token_ids=TokenIds(ids=run.prompt_ids))
        alone = await ask(served.server, GenerateRequest(prompt=prompt, config=CONFIG))
        assert run.output_ids == list(alone.output.token_ids) == served.expected(run.prompt_ids)
        assert run.text == alone.text


async def test_kept_history_holds_ids_that_its_text_would_not_be_encoded_to(
    served: Served,
) -> None:
    tokenizer = served.server.model.tokenizer
    session = await new_session(served.server)
    first, second = await run_turns(served.server, session, ["\n\nWell?", " and?"])

    encoded = tokenizer.encode(first.text, add_special_tokens=False, allow_special_tokens=True)

    assert encoded != first.output_ids
    assert second.prompt_ids[: len(first.context)] == first.context
    shown = tokenizer.decode(second.prompt_ids[len(first.context) :], skip_special_tokens=False)
    assert (
        shown == "<|im_end|><|im_start|>user\n and?<|im_end|><|im_start|>assistant\n<think></think>"
    )
    assert second.output_ids == served.expected(second.prompt_ids)


async def test_rerendered_history_is_what_a_caller_without_a_session_would_send(
    served: Served,
) -> None:
    session = await new_session(served.server, history_policy=HISTORY_POLICY_RERENDER)
    runs: list[TurnRun] = []
    items: list[Item] = []
    conversations: list[Prompt] = []
    for question in QUESTIONS:
        items.append(user(question))
        conversations.append(Prompt(conversation=Conversation(items=items)))
        runs.append(await run_turn(served.server, session, items[-1:], CONFIG))
        items.append(said(Role.ROLE_ASSISTANT, runs[-1].text))

    for i, run in enumerate(runs):
        common = num_common(run.prompt_ids, [earlier.context[:-1] for earlier in runs[:i]])
        reusable = min(common, len(run.prompt_ids) - 1)
        assert whole_blocks(reusable) <= run.usage.cached_prompt_tokens <= reusable
        assert i == 0 or 0 < common < len(runs[i - 1].prompt_ids)  # The past is told differently.
    for run, conversation in zip(runs, conversations, strict=True):
        await served.flush()
        alone = await ask(served.server, GenerateRequest(prompt=conversation, config=CONFIG))
        assert list(alone.prompt_token_ids) == run.prompt_ids
        assert list(alone.output.token_ids) == run.output_ids == served.expected(run.prompt_ids)


def guided(constraint: Constraint) -> GenerationConfig:
    config = greedy(60)
    config.constraint.CopyFrom(constraint)
    return config


@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_constrained_turns_stand_on_what_free_ones_would_and_answer_as_their_ids_do(
    served: Served, policy: int
) -> None:
    session = await new_session(served.server, history_policy=policy)
    asked = list(zip(QUESTIONS, map(guided, CONSTRAINTS), strict=True))
    before = await served.num_prefilled()
    runs = [await run_turn(served.server, session, [user(text)], one) for text, one in asked]
    num_prefilled = await served.num_prefilled() - before

    items: list[Item] = []
    told: list[list[int]] = []
    for (question, config), run in zip(asked, runs, strict=True):
        items.append(user(question))
        reusable = min(num_common(run.prompt_ids, told), len(run.prompt_ids) - 1)
        assert whole_blocks(reusable) <= run.usage.cached_prompt_tokens <= reusable
        if policy == HISTORY_POLICY_KEEP_TOKENS:
            prompt = Prompt(token_ids=TokenIds(ids=run.prompt_ids))
            kept = told[-1:] or [[]]
            assert run.prompt_ids[: len(kept[0])] == kept[0]
        else:
            prompt = Prompt(conversation=Conversation(items=items))
        await served.flush()
        alone = await ask(served.server, GenerateRequest(prompt=prompt, config=config))
        assert list(alone.prompt_token_ids) == run.prompt_ids
        assert list(alone.output.token_ids) == run.output_ids
        items.append(said(Role.ROLE_ASSISTANT, run.text))
        # Of the last token of an output nothing is computed before the next turn.
        told.append(run.context[:-1])
    assert num_prefilled == sum(r.usage.prompt_tokens - r.usage.cached_prompt_tokens for r in runs)


async def test_session_that_starts_with_items_goes_on_from_them(served: Served) -> None:
    items = [user(QUESTIONS[0]), said(Role.ROLE_ASSISTANT, "Good morning to you"), user("Go on")]
    request = CreateSessionRequest(items=items[:2])
    session = await served.server.sessions.CreateSession(request, timeout=LIMIT_S)

    run = await run_turn(served.server, session.name, items[2:], CONFIG)

    prompt = Prompt(conversation=Conversation(items=items))
    alone = await ask(served.server, GenerateRequest(prompt=prompt, config=CONFIG))
    assert run.prompt_ids == list(alone.prompt_token_ids)
    assert run.output_ids == list(alone.output.token_ids)
