from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.served_models import TextSide, load_text_side
from support.session_bench import BenchSpec, SessionBench, session_bench
from support.tiny_tokenizers import save_byte_level_tokenizer


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextSide:
    return load_text_side(save_byte_level_tokenizer(tmp_path_factory.mktemp("byte_level")))


@pytest.fixture
def spec(text: TextSide, tmp_path: Path) -> BenchSpec:
    return BenchSpec(text=text, path=tmp_path / "sessions.db")


@pytest_asyncio.fixture
async def bench(spec: BenchSpec) -> AsyncIterator[SessionBench]:
    async with session_bench(spec) as opened:
        yield opened
