"""Prompts in their three forms, and what is refused before anything is generated."""

import pytest
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Conversation,
    Item,
    Prompt,
    Role,
    TokenIds,
    Tool,
    ToolCall,
    ToolResult,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason, InvalidRequest
from antiphon_server.offload import Offload
from antiphon_server.prompt import render_prompt
from antiphon_server.validation import check_items
from support.fake_engine import FACTS, FakeEngine
from support.served_models import TextSide, served_model


def user(text: str) -> Item:
    return Item(message=ChatMessage(role=Role.ROLE_USER, text=text))


def conversation(*items: Item, tools: list[Tool] | None = None) -> Prompt:
    return Prompt(conversation=Conversation(items=items, tools=tools))


async def render(prompt: Prompt, text: TextSide, offload: Offload) -> list[int]:
    model = served_model(text, FakeEngine())
    rendered = await render_prompt(prompt, model=model, offload=offload, path="prompt")
    return rendered.token_ids


async def fields_at_fault(prompt: Prompt, text: TextSide, offload: Offload) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        await render(prompt, text, offload)
    return [violation.field for violation in caught.value.violations]


async def test_text_is_encoded_as_it_is(text: TextSide, offload: Offload) -> None:
    token_ids = await render(Prompt(text=" \n\tone two"), text, offload)

    assert text.tokenizer.decode(token_ids, skip_special_tokens=False) == " \n\tone two"


@pytest.mark.parametrize(("allowed", "num_special"), [(False, 0), (True, 1)])
async def test_special_tokens_in_a_text_count_only_where_allowed(
    allowed: bool, num_special: int, text: TextSide, offload: Offload
) -> None:
    prompt = Prompt(text="one<|im_end|>", allow_special_tokens=allowed)

    token_ids = await render(prompt, text, offload)

    assert len(text.tokenizer.special_ids.intersection(token_ids)) == num_special
    assert text.tokenizer.decode(token_ids, skip_special_tokens=False) == "one<|im_end|>"


async def test_token_ids_are_taken_as_they_are(text: TextSide, offload: Offload) -> None:
    last = FACTS.vocabulary_size - 1

    assert await render(Prompt(token_ids=TokenIds(ids=[0, last, 5])), text, offload) == [0, last, 5]


@pytest.mark.parametrize("token_id", [FACTS.vocabulary_size, 2**31 - 1, 2**32 - 1])
async def test_token_id_beyond_the_vocabulary_is_refused(
    token_id: int, text: TextSide, offload: Offload
) -> None:
    prompt = Prompt(token_ids=TokenIds(ids=[1, 2, token_id]))

    assert await fields_at_fault(prompt, text, offload) == ["prompt.token_ids.ids[2]"]


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (Prompt(), "prompt"),
        (Prompt(allow_special_tokens=True), "prompt"),
        (Prompt(text=""), "prompt.text"),
        (Prompt(token_ids=TokenIds()), "prompt.token_ids.ids"),
        (Prompt(conversation=Conversation()), "prompt.conversation.items"),
        (
            Prompt(token_ids=TokenIds(ids=[1]), allow_special_tokens=True),
            "prompt.allow_special_tokens",
        ),
        (conversation(user("a"), Item()), "prompt.conversation.items[1]"),
        (
            conversation(Item(message=ChatMessage(text="a"))),
            "prompt.conversation.items[0].message.role",
        ),
        (
            conversation(Item(message=ChatMessage(role=17, text="a"))),  # type: ignore[arg-type]
            "prompt.conversation.items[0].message.role",
        ),
        (
            conversation(Item(message=ChatMessage(role=Role.ROLE_USER, text="a", reasoning="why"))),
            "prompt.conversation.items[0].message.reasoning",
        ),
    ],
)
async def test_malformed_and_empty_prompts_are_refused(
    prompt: Prompt, field: str, text: TextSide, offload: Offload
) -> None:
    assert await fields_at_fault(prompt, text, offload) == [field]


async def test_empty_text_is_a_prompt_where_the_tokenizer_puts_a_token_before_it(
    with_start_token: TextSide, offload: Offload
) -> None:
    assert len(await render(Prompt(text=""), with_start_token, offload)) == 1


async def test_conversation_with_an_empty_text_is_a_prompt(
    text: TextSide, offload: Offload
) -> None:
    assert await render(conversation(user("")), text, offload)


@pytest.mark.parametrize(
    ("prompt", "capability"),
    [
        (conversation(user("a"), tools=[Tool(name="clock")]), "tools"),
        (conversation(user("a"), Item(tool_call=ToolCall(call_id="1"))), "tools"),
        (conversation(user("a"), Item(tool_result=ToolResult(call_id="1"))), "tools"),
        (
            conversation(
                user("a"),
                Item(message=ChatMessage(role=Role.ROLE_ASSISTANT, text="b", reasoning="c")),
            ),
            "reasoning",
        ),
    ],
)
async def test_what_is_not_built_is_refused_by_name(
    prompt: Prompt, capability: str, text: TextSide, offload: Offload
) -> None:
    with pytest.raises(AntiphonError) as caught:
        await render(prompt, text, offload)

    assert caught.value.reason is ErrorReason.UNSUPPORTED_FEATURE
    assert caught.value.metadata["capability"] == capability


def test_items_are_named_below_the_path_given() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_items([user("a"), Item()], "generate.items")

    assert caught.value.violations[0].field == "generate.items[1]"
