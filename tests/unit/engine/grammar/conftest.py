"""The models of the guided loop's tests."""

import json

import pytest

from support.guided_loop import GuidedModel
from support.tiny_tokenizers import save_byte_level_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GuidedModel:
    """A scripted model with a byte-level vocabulary."""
    return GuidedModel.of(save_byte_level_tokenizer(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def speechless(tmp_path_factory: pytest.TempPathFactory) -> GuidedModel:
    """Another, which can't say U+100000: the token of its first byte is none of text."""
    checkpoint = save_byte_level_tokenizer(tmp_path_factory.mktemp("checkpoint"))
    controls = {"additional_special_tokens": ["\u00f4"]}
    (checkpoint / "special_tokens_map.json").write_text(json.dumps(controls))
    return GuidedModel.of(checkpoint)
