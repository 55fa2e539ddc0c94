"""What enters a session's prompts, with the real text side and real templates."""

from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_RERENDER,
    CreateSessionRequest,
    ListTurnsRequest,
    Session,
    StartTurn,
    TurnEvent,
)
from antiphon.v1.types_pb2 import (
    ROLE_ASSISTANT,
    ROLE_SYSTEM,
    ChatMessage,
    Conversation,
    Item,
    Prompt,
    ToolResult,
)

from support.fake_engine import FACTS, FakeEngine, fixed_ids
from support.server import RunningServer, details_of, running_server
from support.session_bench import check_turn_events, text_of
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import events_of_turn, greedy, output_of, prompt_of

THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
)
"""Puts an empty thought before the live answer and leaves it out of past ones."""

ALTERNATING_TEMPLATE = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CONFIG = greedy(6, seed=1)


async def run(
    server: RunningServer, name: str, items: Sequence[Item], turn_id: str = ""
) -> list[TurnEvent]:
    start = StartTurn(turn_id=turn_id, items=items, config=CONFIG)
    events = await events_of_turn(server, name, start)
    check_turn_events(events)
    return events


def said(role: int, text: str) -> Item:
    return Item(message=ChatMessage(role=role, text=text))


async def stateless(server: RunningServer, prompt_ids: Sequence[int]) -> list[int]:
    """What a caller without a session gets for the same ids."""
    request = GenerateRequest(prompt=Prompt(token_ids={"ids": prompt_ids}), config=CONFIG)
    return list((await server.inference.Generate(request)).outputs[0].token_ids)


def with_template(directory: Path, template: str) -> Path:
    """A tokenizer directory with another chat template."""
    checkpoint = save_byte_level_tokenizer(directory / "other")
    (checkpoint / "chat_template.jinja").write_text(template)
    return checkpoint


async def test_a_template_that_tells_the_past_differently_costs_nothing_where_ids_are_kept(
    tmp_path: Path,
):
    checkpoint = with_template(tmp_path, THINKING_TEMPLATE)
    settings = [f"model.chat_template={checkpoint / 'chat_template.jinja'}"]
    async with running_server(tmp_path, checkpoint=checkpoint, settings=settings) as server:
        session = await server.sessions.CreateSession(CreateSessionRequest())
        context: list[int] = []
        for text in ("Hi", "List two", "And one more", "Thanks"):
            events = await run(server, session.name, [user(text)])
            prompt, usage = prompt_of(events), events[-1].completed.usage
            assert prompt[: len(context)] == context
            assert output_of(events) == await stateless(server, prompt)
            reusable = max(0, len(context) - 1) // FACTS.block_tokens * FACTS.block_tokens
            assert reusable <= usage.cached_prompt_tokens <= len(context)
            context = prompt + output_of(events)


async def test_a_template_that_tells_the_past_differently_is_followed_where_all_is_rerendered(
    tmp_path: Path,
):
    checkpoint = with_template(tmp_path, THINKING_TEMPLATE)
    settings = [f"model.chat_template={checkpoint / 'chat_template.jinja'}"]
    async with running_server(tmp_path, checkpoint=checkpoint, settings=settings) as server:
        session = await server.sessions.CreateSession(
            CreateSessionRequest(session=Session(history_policy=HISTORY_POLICY_RERENDER))
        )
        items: list[Item] = []
        for text in ("Hi", "List two", "And one more"):
            items.append(user(text))
            events = await run(server, session.name, items[-1:])
            whole = Prompt(conversation=Conversation(items=items))
            answer = await server.inference.Generate(GenerateRequest(prompt=whole, config=CONFIG))
            assert prompt_of(events) == list(answer.prompt_token_ids)
            assert text_of(events) == answer.outputs[0].text
            items.append(said(ROLE_ASSISTANT, text_of(events)))


@pytest.mark.parametrize("text", [" and?", "\n\nand?", "and"])
async def test_an_answer_split_in_an_unusual_way_stays_as_it_was_generated(
    tmp_path: Path, text: str
):
    async with running_server(tmp_path) as probe:
        split = [
            probe.model.tokenizer.encode(c, add_special_tokens=False, allow_special_tokens=False)[0]
            for c in "hello"
        ]
    engine = FakeEngine(script=fixed_ids(*split))
    async with running_server(tmp_path, engine=engine) as server:
        usual = server.model.tokenizer.encode(
            "hello", add_special_tokens=False, allow_special_tokens=False
        )
        session = await server.sessions.CreateSession(CreateSessionRequest())
        first = await run(server, session.name, [user("Say it")])
        second = await run(server, session.name, [user(text)])

        assert usual != split
        assert text_of(first) == "hello"
        assert output_of(first)[: len(split)] == split
        kept = prompt_of(first) + output_of(first)
        assert prompt_of(second)[: len(kept)] == kept
        assert output_of(second) == await stateless(server, prompt_of(second))


@pytest.mark.parametrize(
    ("items", "reason", "words"),
    [
        ([user("a"), user("b")], "TEMPLATE_ERROR", "take turns"),
        ([said(ROLE_SYSTEM, "a"), user("b")], "TEMPLATE_ERROR", "take turns"),
        ([said(ROLE_ASSISTANT, "a")], "TEMPLATE_ERROR", "take turns"),
        ([], "INVALID_FIELD", "items"),
        ([user("a"), said(9, "b")], "INVALID_FIELD", "role"),
        ([user("a"), Item(tool_result=ToolResult(call_id="c"))], "UNSUPPORTED_FEATURE", "tools"),
    ],
)
async def test_an_order_of_roles_that_the_template_refuses_leaves_the_session_usable(
    tmp_path: Path, items: list[Item], reason: str, words: str
):
    checkpoint = with_template(tmp_path, ALTERNATING_TEMPLATE)
    settings = [f"model.chat_template={checkpoint / 'chat_template.jinja'}"]
    async with running_server(tmp_path, checkpoint=checkpoint, settings=settings) as server:
        session = await server.sessions.CreateSession(CreateSessionRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await run(server, session.name, items)
        listed = await server.sessions.ListTurns(ListTurnsRequest(session=session.name))
        legal = await run(server, session.name, [user("a")])
        fresh = await server.sessions.CreateSession(CreateSessionRequest())
        expected = await run(server, fresh.name, [user("a")])

        info = details_of(refused.value)["ErrorInfo"]
        assert info.reason == reason
        assert words in (refused.value.details() or "")
        assert not listed.turns
        assert prompt_of(legal) == prompt_of(expected)
        assert output_of(legal) == output_of(expected)
