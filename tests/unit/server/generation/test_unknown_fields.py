"""Fields that this server does not know are refused wherever they stand."""

import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Conversation,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    SamplingParams,
)

from antiphon_engine.api.errors import InvalidRequest
from antiphon_server.validation import check_unknown_fields
from antiphon_server.validation_unknown import MAX_INNER_MESSAGES

FIELD_99 = bytes([0x98, 0x06, 0x05])
"""Number 99, a varint of 5."""


def full_request() -> GenerateRequest:
    item = Item(message=ChatMessage(role=Role.ROLE_USER, text="hello"))
    return GenerateRequest(
        model="models/tiny",
        prompt=Prompt(conversation=Conversation(items=[item, item])),
        config=GenerationConfig(sampling=SamplingParams(temperature=1, logit_bias={3: 1.0})),
    )


def test_known_fields_pass() -> None:
    check_unknown_fields(full_request(), "")


@pytest.mark.parametrize(
    ("prefix", "path"), [("", "config.sampling.99"), ("frame", "frame.config.sampling.99")]
)
def test_unknown_field_is_named_with_its_path(prefix: str, path: str) -> None:
    request = full_request()
    request.config.sampling.MergeFromString(FIELD_99)

    with pytest.raises(InvalidRequest) as caught:
        check_unknown_fields(request, prefix)

    assert [violation.field for violation in caught.value.violations] == [path]


def test_unknown_fields_are_found_at_the_top_and_in_lists() -> None:
    request = full_request()
    request.MergeFromString(FIELD_99)
    request.prompt.conversation.items[1].message.MergeFromString(FIELD_99)

    with pytest.raises(InvalidRequest) as caught:
        check_unknown_fields(request, "")

    assert [violation.field for violation in caught.value.violations] == [
        "99",
        "prompt.conversation.items[1].message.99",
    ]


def test_refusal_of_very_many_stays_small() -> None:
    request = full_request()
    item = request.prompt.conversation.items[0]
    item.MergeFromString(FIELD_99)
    request.prompt.conversation.items.extend([item] * 1000)

    with pytest.raises(InvalidRequest) as caught:
        check_unknown_fields(request, "")

    assert len(caught.value.violations) == 32


@pytest.mark.parametrize("nested", [False, True])
def test_more_messages_inside_than_allowed_are_refused_by_field(nested: bool) -> None:
    num_items = MAX_INNER_MESSAGES // 2 if nested else MAX_INNER_MESSAGES + 1
    item = Item(message=ChatMessage(text="a")) if nested else Item()
    request = GenerateRequest(prompt=Prompt(conversation=Conversation(items=[item] * num_items)))

    with pytest.raises(InvalidRequest) as caught:
        check_unknown_fields(request, "")

    (violation,) = caught.value.violations
    assert violation.field.startswith("prompt.conversation.items")
    assert str(MAX_INNER_MESSAGES) in violation.description
