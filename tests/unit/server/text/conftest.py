"""Tokenizers that the tests of text share: trained once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from antiphon_server.text.chat_template import ChatTemplate
from antiphon_server.text.prompt_renderer import PromptRenderer
from antiphon_server.text.tokenizer import Tokenizer
from support.tiny_tokenizers import (
    save_byte_fallback_tokenizer,
    save_byte_level_tokenizer,
    save_metaspace_tokenizer,
)


@dataclass(frozen=True, eq=False)
class Pair:
    """Our tokenizer and transformers' for the same directory."""

    name: str
    directory: Path
    ours: Tokenizer
    reference: PreTrainedTokenizerFast


_SAVERS: dict[str, Callable[[Path], Path]] = {
    "byte_level": save_byte_level_tokenizer,
    "byte_fallback": save_byte_fallback_tokenizer,
    "metaspace": save_metaspace_tokenizer,
}


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    made = {}
    for name, save in _SAVERS.items():
        directory = save(tmp_path_factory.mktemp("tokenizers") / name)
        reference = PreTrainedTokenizerFast.from_pretrained(directory)
        made[name] = Pair(name, directory, Tokenizer.load(directory), reference)
    return made


@pytest.fixture(params=list(_SAVERS))
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> Pair:
    return pairs[request.param]


@pytest.fixture
def byte_level(pairs: dict[str, Pair]) -> Pair:
    return pairs["byte_level"]


@pytest.fixture
def byte_fallback(pairs: dict[str, Pair]) -> Pair:
    return pairs["byte_fallback"]


@pytest.fixture(scope="session")
def renderer_of() -> Callable[[Pair, str], PromptRenderer]:
    """Makes each renderer once: compiling a template takes longer than most tests."""

    @cache
    def make(pair: Pair, source: str) -> PromptRenderer:
        return PromptRenderer(pair.ours, ChatTemplate({"default": source}))

    return make
