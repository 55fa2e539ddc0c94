import json
from collections.abc import AsyncIterator, Iterator

import pytest

from antiphon_server.offload import Offload
from antiphon_server.services.multiplex import MultiplexLimits
from support.fake_engine import FakeEngine
from support.inference_server import inference_server
from support.multiplexing import MultiplexSetup
from support.served_models import TextSide, load_text_side, served_model
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


@pytest.fixture
async def multiplex(text: TextSide, offload: Offload) -> AsyncIterator[MultiplexSetup]:
    """Streams of which four requests run at a time; nothing is left of them behind the test."""
    engine = FakeEngine(max_running=8)
    limits = MultiplexLimits(max_running=4)
    model = served_model(text, engine)
    async with inference_server(model, offload, multiplex_limits=limits) as server:
        made = MultiplexSetup(engine, server)
        yield made
        await made.until_idle()
