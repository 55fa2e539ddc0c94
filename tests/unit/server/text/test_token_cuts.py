"""Where texts can be cut between their tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.text.output_text import OutputText, TextSpec
from antiphon_server.text.token_cuts import told_cuts
from antiphon_server.text.tokenizer import Tokenizer
from support.served_models import load_text_side
from support.tiny_tokenizers import save_byte_level_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_text_side(save_byte_level_tokenizer(tmp_path_factory.mktemp("text"))).tokenizer


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=False)


def test_a_place_inside_a_character_of_several_tokens_is_no_cut(tokenizer: Tokenizer):
    token_ids = ids_of(tokenizer, "a€b")
    assert len(token_ids) == 5

    cuts = told_cuts(OutputText(tokenizer, TextSpec()), token_ids)

    assert cuts == {0: 0, 1: 1, 2: 4, 3: 5}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(text=st.text(max_size=30))
def test_what_is_cut_says_what_it_should(tokenizer: Tokenizer, text: str):
    token_ids = ids_of(tokenizer, text)

    cuts = told_cuts(OutputText(tokenizer, TextSpec()), token_ids)

    whole = tokenizer.decode(token_ids, skip_special_tokens=True)
    for num_characters, num_tokens in cuts.items():
        said = tokenizer.decode(token_ids[:num_tokens], skip_special_tokens=True)
        assert said == whole[:num_characters]
