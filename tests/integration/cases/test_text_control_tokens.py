"""Control tokens that the model writes show in the text only where they are asked for."""

from collections.abc import Sequence

import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputOptions,
    SamplingParams,
    StopConditions,
    StopMatch,
)

from support.answers import ask, ask_in_session
from support.forced_texts import Speaker

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = SamplingParams(temperature=0)
SHOW = pytest.mark.parametrize("show", [False, True], ids=["hidden", "shown"])
END = "<end>"
"""In scripts: the token that ends an answer."""
CALL = ["<tool_call>", '{"name": "dial", "arguments": {"number": 7}}', "</tool_call>"]


def write(speaker: Speaker, script: Sequence[str]) -> list[int]:
    """Returns the tokens of a script: texts, and names of control tokens."""
    token_ids: list[int] = []
    for part in script:
        known = speaker.end_id if part == END else speaker.reference.token_to_id(part)
        control = part == END or part.startswith("<")
        token_ids += [known] if control and known is not None else speaker.encode(part)
    return token_ids


def special_texts(speaker: Speaker) -> list[str]:
    added = speaker.reference.get_added_tokens_decoder().values()
    found = [token.content for token in added if token.special]
    assert "<|im_end|>" in found
    return found


@SHOW
@pytest.mark.parametrize(
    "script",
    [
        ["Good day", END],
        ["as you ask: ", *CALL, END],
        ["<|im_start|>", "one", "<|endoftext|>", "two", END],
        [END],
        ["<|im_start|>", "<|im_start|>", END],
        ["<think>", "hm", "</think>", "yes", END],
    ],
)
async def test_special_tokens_show_only_where_asked_for(
    speaker: Speaker, script: list[str], show: bool
) -> None:
    token_ids = write(speaker, script)
    # What ends the answer is one of the tokenizer's special tokens.
    config = GenerationConfig(
        sampling=GREEDY, output=OutputOptions(special_tokens=show, token_ids=True)
    )
    request = GenerateRequest(prompt=speaker.prompt_for(token_ids), config=config)
    speaker.answer_turns(token_ids)

    answer = await ask(speaker.server, request)
    _, turn = await ask_in_session(speaker.server, "Well?", config)

    shown = speaker.reference.decode(token_ids, skip_special_tokens=not show)
    assert answer.text == shown
    assert turn.output.text.lstrip(" ") == shown.lstrip(" ")
    assert answer.output.token_ids == turn.output.token_ids == token_ids
    assert answer.output.finish_reason == FinishReason.FINISH_REASON_STOP
    assert answer.output.stop_match == StopMatch(token_id=speaker.end_id)
    for text in special_texts(speaker):
        assert show or text not in answer.text + turn.output.text


@SHOW
async def test_special_token_of_the_callers_that_stops_is_reported_and_hidden(
    speaker: Speaker, show: bool
) -> None:
    stop_id = speaker.token_id("<|im_start|>")
    token_ids = write(speaker, ["so far", "<|im_start|>", "never said", END])
    config = GenerationConfig(
        sampling=GREEDY,
        stop=StopConditions(stop_token_ids=[stop_id]),
        output=OutputOptions(special_tokens=show, token_ids=True),
    )
    request = GenerateRequest(prompt=speaker.prompt_for(token_ids), config=config)

    answer = await ask(speaker.server, request)

    kept = token_ids[: token_ids.index(stop_id) + 1]
    assert answer.output.token_ids == kept
    assert answer.text == speaker.reference.decode(kept, skip_special_tokens=not show)
    assert answer.output.finish_reason == FinishReason.FINISH_REASON_STOP_SEQUENCE
    assert answer.output.stop_match == StopMatch(token_id=stop_id)


@SHOW
async def test_end_token_that_is_ignored_is_hidden_as_any_special_token(
    speaker: Speaker, show: bool
) -> None:
    token_ids = write(speaker, ["on", END, "and on", END])
    request = GenerateRequest(
        prompt=speaker.prompt_for(token_ids),
        config=GenerationConfig(
            sampling=GREEDY,
            stop=StopConditions(ignore_eos=True, max_output_tokens=len(token_ids)),
            output=OutputOptions(special_tokens=show),
        ),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == speaker.reference.decode(token_ids, skip_special_tokens=not show)


@SHOW
async def test_name_of_a_control_token_in_ordinary_tokens_is_text(
    speaker: Speaker, show: bool
) -> None:
    """As a model may quote it: nothing that decoding the tokens shows is taken away."""
    token_ids = [*speaker.spell("write <|im_end|> there"), speaker.end_id]
    request = GenerateRequest(
        prompt=speaker.prompt_for(token_ids),
        config=GenerationConfig(sampling=GREEDY, output=OutputOptions(special_tokens=show)),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == speaker.reference.decode(token_ids, skip_special_tokens=not show)
    assert answer.usage.output_tokens == len(token_ids)


async def test_stop_string_finds_a_control_token_only_where_it_shows(speaker: Speaker) -> None:
    token_ids = write(speaker, ["one", "<|im_start|>", "two", END])
    texts = {}
    for show in (False, True):
        request = GenerateRequest(
            prompt=speaker.prompt_for(token_ids),
            config=GenerationConfig(
                sampling=GREEDY,
                stop=StopConditions(stop_strings=["<|im_start|>"]),
                output=OutputOptions(special_tokens=show),
            ),
        )
        texts[show] = (await ask(speaker.server, request)).text

    assert texts == {
        False: speaker.reference.decode(token_ids, skip_special_tokens=True),
        True: "one",
    }


@SHOW
async def test_ordinary_token_that_stops_shows_where_special_tokens_do(
    speaker: Speaker, show: bool
) -> None:
    token_ids = [*speaker.spell("to be; or not"), speaker.end_id]
    stop_id = speaker.spell(";")[0]
    request = GenerateRequest(
        prompt=speaker.prompt_for(token_ids),
        config=GenerationConfig(
            sampling=GREEDY,
            stop=StopConditions(stop_token_ids=[stop_id]),
            output=OutputOptions(special_tokens=show, token_ids=True),
        ),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == ("to be;" if show else "to be")
    assert answer.output.token_ids == speaker.spell("to be;")
    assert answer.output.stop_match == StopMatch(token_id=stop_id)
