"""Outputs with calls that end in every way: each ends once, and tells whole calls alone."""

import asyncio
import json

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse
from antiphon.v1.types_pb2 import (
    FinishReason,
    OutputChannel,
    OutputOptions,
    StopConditions,
    Tool,
    ToolChoice,
)

from support.answers import LIMIT_S, ask
from support.calling_models import (
    BERN,
    CallingModel,
    ask_every_way,
    calls_of,
    config,
    request,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLED = FinishReason.FINISH_REASON_TOOL_CALLS
STOP_SEQUENCE = FinishReason.FINISH_REASON_STOP_SEQUENCE
OUT_OF_TOKENS = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
CHOICES = {"free": None, "must": ToolChoice(mode=ToolChoice.MODE_REQUIRED)}
CHOSEN = pytest.mark.parametrize("choice", CHOICES)
SHOWN = OutputOptions(token_ids=True, top_logprobs=1)
NUM_CUTS = 6
"""An output is cut at so many places, of each family at others."""


def text_before(model: CallingModel, said: str, shown: str, *, must_call: bool) -> str:
    """What of an output that was cut is its answer: the text, and what may begin a call by chance.

    Args:
        model: Of the family.
        said: The text that it says before its calls.
        shown: All that it has said, markers included.
        must_call: Whether it may say no text.
    """
    if must_call:
        return ""
    opener = model.tools.bare_opener if not said else ""
    if len(shown) <= len(said) or (opener and len(shown) < len(opener)):
        return shown
    return said


@CHOSEN
async def test_an_output_that_is_cut_at_any_token_tells_whole_calls_alone(
    model: CallingModel, choice: str
) -> None:
    said = "" if model.tools.bare_opener or choice == "must" else "Well <"
    token_ids = model.wants(said + model.write(model.calls))
    tokenizer = model.server.model.tokenizer
    nums_told = set()
    stride = len(token_ids) // NUM_CUTS
    for num_tokens in range(1 + len(model.name) % stride, len(token_ids) + 1, stride):
        asked = config(CHOICES[choice], max_tokens=num_tokens, output=SHOWN)

        answer = await ask(model.server, request(asked))

        output = answer.output
        shown = tokenizer.decode(token_ids[:num_tokens], skip_special_tokens=False)
        told = calls_of(output)
        assert output.token_ids == token_ids[:num_tokens]
        assert [entry.chosen.token_id for entry in output.logprobs] == output.token_ids
        assert answer.usage.output_tokens == num_tokens
        assert told == list(model.calls)[: len(told)]
        assert output.text == text_before(model, said, shown, must_call=choice == "must")
        assert output.finish_reason == OUT_OF_TOKENS
        nums_told.add(len(told))
    assert nums_told >= set(range(len(model.calls)))


@CHOSEN
async def test_the_token_that_ends_a_call_may_be_the_last(model: CallingModel, choice: str) -> None:
    token_ids = model.wants(model.write(BERN))
    for num_tokens, reason in ((len(token_ids), OUT_OF_TOKENS), (len(token_ids) + 1, CALLED)):
        asked = config(CHOICES[choice], max_tokens=num_tokens, output=SHOWN)

        output = (await ask(model.server, request(asked))).output

        assert calls_of(output) == list(BERN)
        assert len(output.logprobs) == len(output.token_ids) == num_tokens
        assert output.finish_reason == reason


ENDS = {
    "calls": (StopConditions(), CALLED),
    "stop_string": (StopConditions(stop_strings=["then"]), STOP_SEQUENCE),
    "budget": (StopConditions(max_output_tokens=20), OUT_OF_TOKENS),
    "one_token": (StopConditions(max_output_tokens=1), OUT_OF_TOKENS),
}


@pytest.mark.parametrize("name", [*ENDS, "stop_token"])
async def test_each_output_ends_once_with_usage_once(hermes: CallingModel, name: str) -> None:
    hermes.wants("Well then\n" + hermes.write([*BERN, *BERN]))
    by_token = StopConditions(stop_token_ids=[hermes.encode("</tool_call>")[0]])
    stop, reason = ENDS.get(name, (by_token, STOP_SEQUENCE))
    asked = request(config(output=SHOWN))
    asked.config.stop.MergeFrom(stop)
    asked.num_outputs = num_outputs = 3

    answer = await ask(hermes.server, asked)

    assert [output.finish_reason for output in answer.outputs] == [reason] * num_outputs
    assert answer.usage.output_tokens == sum(len(output.token_ids) for output in answer.outputs)
    calls = [call for output in answer.outputs for call in output.tool_calls]
    assert len({call.call_id for call in calls}) == len(calls)
    num_calls = {"calls": 2 * num_outputs}.get(name, 0)
    assert len(calls) == num_calls


async def test_stop_strings_end_the_text_before_calls_and_no_call(model: CallingModel) -> None:
    model.wants(model.write(model.calls))
    asked = config()
    asked.stop.stop_strings.extend(["東京", "weather", '"', "}", "<tool_call>", "TOOL"])

    output = await ask_every_way(model.server, request(asked))

    assert calls_of(output) == list(model.calls)
    assert output.finish_reason == CALLED
    assert not output.HasField("stop_match") or output.stop_match.token_id


async def test_text_that_might_begin_a_stop_string_is_out_before_a_call(
    hermes: CallingModel,
) -> None:
    hermes.wants("So be it th" + hermes.write(BERN))
    asked = config()
    asked.stop.stop_strings.extend(["then", "<tool"])

    output = await ask_every_way(hermes.server, request(asked))

    assert (output.text, calls_of(output)) == ("So be it th", list(BERN))


ANY_TEXT = Tool(
    name="say",
    parameters_json_schema=json.dumps(
        {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        }
    ),
)


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_a_call_that_is_cancelled_inside_of_its_arguments_is_told_no_more(
    hermes: CallingModel, num_outputs: int
) -> None:
    head = hermes.write([("say", '{"text": "aaa')]).split("aaa")[0]
    hermes.wants(f"{head}aaa", goes_on=True)
    asked = request(config(max_tokens=1500), tools=[ANY_TEXT])
    asked.num_outputs = num_outputs
    call = hermes.server.inference.StreamGenerate(asked, timeout=LIMIT_S)
    read: list[StreamGenerateResponse] = []
    while sum(each.delta.channel == OutputChannel.OUTPUT_CHANNEL_TOOL_CALL for each in read) < 3:
        read.append(await call.read())

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call.read()
    assert await call.code() is grpc.StatusCode.CANCELLED
    kinds = {each.WhichOneof("event") for each in read}
    assert kinds == {"started", "delta"}


def with_tokens(asked: GenerateRequest, shows: bool) -> GenerateRequest:
    asked.config.output.special_tokens = shows
    return asked


@pytest.mark.parametrize("shows", [False, True], ids=["hidden", "shown"])
async def test_control_tokens_inside_of_thinking_show_where_asked_for(
    thinking: CallingModel, shows: bool
) -> None:
    (end_id,) = thinking.server.model.tokenizer.end_ids
    names = ("<|im_start|>", "<|python_tag|>")
    inside = [thinking.reference.token_to_id(name) for name in names]
    thinking.wants_ids(
        [
            *thinking.encode("<think>\nso "),
            *inside,
            *thinking.encode("be it</think>\n\nyes"),
            end_id,
        ]
    )
    asked = request(config(), tools=())

    output = await ask_every_way(thinking.server, with_tokens(asked, shows))

    assert output.reasoning == "so " + "".join(names) * shows + "be it"
    assert output.text == "yes" + "<|im_end|>" * shows
