from collections.abc import Iterator

import pytest

from antiphon_server.offload import Offload
from support.served_models import TextSide, load_text_side
from support.tiny_tokenizers import save_byte_fallback_tokenizer, save_byte_level_tokenizer


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> TextSide:
    return load_text_side(save_byte_level_tokenizer(tmp_path_factory.mktemp("byte_level")))


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> TextSide:
    return load_text_side(save_byte_fallback_tokenizer(tmp_path_factory.mktemp("byte_fallback")))


@pytest.fixture
def text(byte_level: TextSide) -> TextSide:
    return byte_level


@pytest.fixture
def offload() -> Iterator[Offload]:
    pool = Offload(num_threads=2, max_pending=16)
    yield pool
    pool.close()
