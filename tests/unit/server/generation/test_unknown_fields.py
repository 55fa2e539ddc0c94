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
