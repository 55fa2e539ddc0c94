"""Answers that were said in several turns."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.sessions.answers import Answer, AnswerPart
from antiphon_server.text.output_text import OutputText, TextSpec
from antiphon_server.text.tokenizer import Tokenizer
from support.tiny_tokenizers import save_byte_fallback_tokenizer, save_byte_level_tokenizer

STOP = "#"
SAVERS = {"byte_level": save_byte_level_tokenizer, "byte_fallback": save_byte_fallback_tokenizer}


@pytest.fixture(scope="module", params=SAVERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory) -> Tokenizer:
    return Tokenizer.load(SAVERS[request.param](tmp_path_factory.mktemp("tokenizer")))


def told(tokenizer: Tokenizer, prompt: Sequence[int], token_ids: Sequence[int]) -> str:
    """What is told of ids that were generated behind a prompt."""
    text = OutputText(tokenizer, TextSpec(prompt_tail=prompt[-64:], stop_strings=[STOP]))
    (piece,) = text.push(token_ids)
    return piece.text if piece.stop else piece.text + text.finish()[0].text


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=False)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(text=st.text("abc é€🙂", min_size=1, max_size=20), data=st.data())
@pytest.mark.parametrize("end", ["", STOP])
def test_an_answer_in_parts_reads_as_one(tokenizer: Tokenizer, text: str, end: str, data):
    prompt, token_ids = ids_of(tokenizer, "say it"), ids_of(tokenizer, text + end)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(token_ids)), max_size=3)))
    parts, begun = [], 0
    for cut in [*cuts, len(token_ids)]:
        piece = token_ids[begun:cut]
        said = told(tokenizer, prompt + token_ids[:begun], piece)
        parts.append(AnswerPart(said, "", array("i", piece)))
        begun = cut

    (item,) = Answer(tuple(parts)).to_items(tokenizer.decode_answer)

    assert item.message.text == told(tokenizer, prompt, token_ids)


def test_parts_that_show_special_tokens_are_joined_as_they_were_told(tokenizer: Tokenizer):
    parts = (
        AnswerPart("a<|im_start|>", "x", array("i", [1])),
        AnswerPart("b", "y", array("i", [2])),
    )

    (item,) = Answer(parts).to_items(tokenizer.decode_answer)

    assert item.message.text == "a<|im_start|>b"
    assert item.message.reasoning == "xy"
