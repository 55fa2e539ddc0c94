"""The engine process with random weights: whatever ends by itself is what its schema allows."""

import asyncio
import contextlib
import random
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.grammar import Grammar
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.messages import (
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StopParams,
)
from antiphon_engine.grammar.vocabulary import Vocabulary, read_vocabulary
from support.engine_links import at_rest, read_all
from support.engine_zygote import forked
from support.json_spellings import Json
from support.random_schemas import SchemaMaker
from support.schema_attack import Refused, grammar_of
from support.schema_cases import read_maskbench
from support.schema_oracle import SchemaOracle, Undecidable
from support.tiny_checkpoints import VOCABULARY_SIZE, make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN_CASES = Path(__file__).parents[2] / "data" / "grammar_cases.jsonl"
NUM_RANDOM = 60
MAX_TOKENS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A running engine and what its tokens stand for."""

    link: EngineLink
    vocabulary: Vocabulary

    async def write(self, grammar: Grammar, seed: int) -> str | None:
        """Returns an output at temperature 1, if it ends by itself."""
        end_id = self.vocabulary.tokens.index(b"<|im_end|>")
        prompt = random.Random(seed).choices(range(3, 500), k=9)
        request = GenerationRequest(
            prompt=array("i", prompt).tobytes(),
            sampling=SamplingParams(seed=seed, temperature=1.0),
            stop=StopParams(max_output_tokens=MAX_TOKENS, end_ids=(end_id,)),
            grammar=grammar,
        )
        *token_ids, end = (await read_all(self.link.submit(request)))[0]
        if end != -FinishReason.END_ID:
            assert end == -FinishReason.MAX_OUTPUT_TOKENS
            return None
        assert token_ids.pop() == end_id
        return b"".join(self.vocabulary.tokens[each] for each in token_ids).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Model]:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"))
    save_byte_level_tokenizer(checkpoint)
    config = EngineConfig(dtype="float32", kv_cache_tokens=4096, block_tokens=8, max_rows=16)
    link = await EngineLink.start(config, checkpoint, command=forked("antiphon_engine"))
    yield Model(link=link, vocabulary=read_vocabulary(checkpoint, size=VOCABULARY_SIZE))
    await link.close()


def varied_schemas() -> list[tuple[Json, Grammar]]:
    """Returns schemas that are taken and can be validated, with their grammars."""
    schemas = [case.schema for case in read_maskbench(OWN_CASES)]
    schemas += [SchemaMaker(random.Random(seed)).make() for seed in range(NUM_RANDOM)]
    taken = []
    for schema in schemas:
        with contextlib.suppress(Refused, Undecidable):
            SchemaOracle(schema)
            taken.append((schema, grammar_of(schema)[0]))
    return taken


async def test_outputs_that_end_satisfy_their_schemas(model: Model) -> None:
    taken = varied_schemas()

    texts = await asyncio.gather(
        *(model.write(grammar, seed) for seed, (_, grammar) in enumerate(taken))
    )

    ended = [
        (schema, text) for (schema, _), text in zip(taken, texts, strict=True) if text is not None
    ]
    print(f"{len(ended)} of {len(taken)} ended")
    assert [(s, text) for s, text in ended if not SchemaOracle(s).accepts_text(text)] == []
    assert len(ended) >= 20
    assert (await at_rest(model.link)).num_blocks_used == 0
