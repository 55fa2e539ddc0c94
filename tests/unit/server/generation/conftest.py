import json
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


@pytest.fixture(scope="session")
def with_start_token(tmp_path_factory: pytest.TempPathFactory) -> TextSide:
    directory = save_byte_fallback_tokenizer(tmp_path_factory.mktemp("with_start_token"))
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    start_id = next(t["id"] for t in definition["added_tokens"] if t["content"] == "<s>")
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [start_id], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(definition), encoding="utf-8")
    return load_text_side(directory)
