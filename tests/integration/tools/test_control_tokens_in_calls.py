"""Control tokens never show in a call's arguments, and their names as text are text."""

import json

import pytest
from antiphon.v1.types_pb2 import FinishReason, OutputOptions, ToolChoice

from support.calling_models import CallingModel, ask_every_way, calls_of, config, request

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLED = FinishReason.FINISH_REASON_TOOL_CALLS
CHOICES = {"free": None, "must": ToolChoice(mode=ToolChoice.MODE_REQUIRED)}
CHOSEN = pytest.mark.parametrize(
    ("choice", "show"),
    [("free", True), ("must", False)],
    ids=["free-shown", "must-hidden"],
)
"""One doesn't hang on the other."""
SHOW = pytest.mark.parametrize("show", [False, True], ids=["hidden", "shown"])


def special_texts(model: CallingModel) -> list[str]:
    added = model.reference.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


@CHOSEN
async def test_control_tokens_inside_of_arguments_are_not_said(
    model: CallingModel, choice: str, show: bool
) -> None:
    (end_id,) = model.server.model.tokenizer.end_ids
    head, _, tail = model.write([("weather", '{"city": "Be~rn"}')]).partition("~")
    inside = [model.reference.token_to_id(text) for text in special_texts(model)]
    model.wants_ids([*model.encode(head), *inside, *model.encode(tail), end_id])
    asked = config(CHOICES[choice], output=OutputOptions(special_tokens=show))

    output = await ask_every_way(model.server, request(asked))

    ((name, arguments), *_) = calls_of(output)
    assert name == "weather"
    assert json.loads(arguments)["city"].startswith("Be")
    for text in special_texts(model):
        assert text not in arguments
    assert output.finish_reason == CALLED


@CHOSEN
async def test_names_of_control_tokens_as_text_stand_in_arguments(
    model: CallingModel, choice: str, show: bool
) -> None:
    for text in ("<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "[TOOL_CALLS]"):
        call = ("weather", json.dumps({"city": text}))
        (end_id,) = model.server.model.tokenizer.end_ids
        head, _, tail = model.write([("weather", '{"city": "~"}')]).partition("~")
        spelled = model.server.model.tokenizer.encode(
            text, add_special_tokens=False, allow_special_tokens=False
        )
        model.wants_ids([*model.encode(head), *spelled, *model.encode(tail), end_id])
        asked = config(CHOICES[choice], output=OutputOptions(special_tokens=show))

        output = await ask_every_way(model.server, request(asked))

        assert calls_of(output) == [call], text
        assert output.finish_reason == CALLED


@SHOW
async def test_markers_around_a_call_show_nowhere(model: CallingModel, show: bool) -> None:
    said = "" if model.tools.bare_opener else "ok "
    model.wants(said + model.write([("clock_now", "{}")]))
    asked = config(output=OutputOptions(special_tokens=show))

    output = await ask_every_way(model.server, request(asked))

    assert calls_of(output) == [("clock_now", "{}")]
    assert output.text.strip() == said.strip()
