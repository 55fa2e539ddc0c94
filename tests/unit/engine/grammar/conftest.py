"""The model of the guided loop's tests."""

import pytest

from support.guided_loop import GuidedModel
from support.tiny_tokenizers import save_byte_level_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GuidedModel:
    """A scripted model with a byte-level vocabulary."""
    return GuidedModel.of(save_byte_level_tokenizer(tmp_path_factory.mktemp("checkpoint")))
