"""Characters whose bytes lie in several tokens reach the client whole."""

import unicodedata

import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputOptions,
    SamplingParams,
    StopConditions,
)

from support.answers import REPLACEMENT, ask, ask_in_session
from support.forced_texts import Speaker

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = SamplingParams(temperature=0)
TEXTS = [
    "ça coûte 5 € — déjà",
    "東京は夜の七時。",
    "🛶🏔🦉",
    "👨‍👩‍👧‍👦 and 🏴‍☠️",
    "ขอบคุณครับ",
    "Å is not A\u030a",
    "🇧🇷🇯🇵 both",
    "tab\tbell\u0007end\u007f",
    "नमस्ते दुनिया",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("split", ["as_encoded", "byte_by_byte"])
async def test_characters_are_never_cut(speaker: Speaker, text: str, split: str) -> None:
    if split == "byte_by_byte":
        token_ids, shown = speaker.spell(text), text
    else:
        token_ids = speaker.encode(text)
        shown = unicodedata.normalize("NFC", text) if speaker.name == "byte_level" else text
    request = GenerateRequest(
        prompt=speaker.prompt_for([*token_ids, speaker.end_id]),
        config=GenerationConfig(sampling=GREEDY),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == shown
    assert not any(REPLACEMENT in piece for piece in answer.pieces)
    assert answer.output.finish_reason == FinishReason.FINISH_REASON_STOP
    assert answer.usage.output_tokens == len(token_ids) + 1


async def test_characters_are_never_cut_in_a_turn(speaker: Speaker) -> None:
    text = " ".join(TEXTS)
    speaker.answer_turns([*speaker.spell(text), speaker.end_id])

    _, turn = await ask_in_session(speaker.server, "東京?", GenerationConfig(sampling=GREEDY))

    # A blank that the tokenizer puts before a text is none behind a prompt.
    assert turn.output.text == text
    assert turn.output.finish_reason == FinishReason.FINISH_REASON_STOP


@pytest.mark.parametrize("text", ["東京", "ok 🛶"])
async def test_broken_character_shows_once_at_the_end_and_alike_everywhere(
    speaker: Speaker, text: str
) -> None:
    token_ids = speaker.spell(text)
    for num_tokens in range(1, len(token_ids)):
        request = GenerateRequest(
            prompt=speaker.prompt_for(token_ids),
            config=GenerationConfig(
                sampling=GREEDY, stop=StopConditions(max_output_tokens=num_tokens)
            ),
        )

        answer = await ask(speaker.server, request)

        assert answer.text == speaker.reference.decode(token_ids[:num_tokens])
        assert not any(REPLACEMENT in piece for piece in answer.pieces[:-1])
        assert answer.output.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS


async def test_outputs_side_by_side_each_keep_their_characters_whole(speaker: Speaker) -> None:
    text = "".join(TEXTS)
    request = GenerateRequest(
        prompt=speaker.prompt_for([*speaker.spell(text), speaker.end_id]),
        config=GenerationConfig(sampling=GREEDY, output=OutputOptions(token_ids=True)),
        num_outputs=3,
    )

    answer = await ask(speaker.server, request)

    assert [output.text for output in answer.outputs] == [text] * 3
    assert not any(REPLACEMENT in piece for piece in answer.pieces)
    assert [len(output.token_ids) for output in answer.outputs] == [len(text.encode()) + 1] * 3
