"""A tiny model on an accelerator says the same within its grammars at every depth."""

import itertools
import re
from dataclasses import replace

import msgspec
import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.grammar import GrammarBackend, Thinking
from antiphon_engine.api.messages import GenerationRequest, StopParams
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.grammars import regex
from support.guided_loop import (
    VOCABULARY_SIZE,
    GuidedModel,
    run_until_ended,
)
from support.loop_harness import OutputKey, running_loop_of
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

CODE = "[a-f]{2}-[0-9]{1,4}(-x)?"
FREE, CODED, THOUGHTFUL = range(1, 4)


def make_requests(model: GuidedModel) -> dict[int, GenerationRequest]:
    # Greedy: batches of other sizes round otherwise, and a draw could lie on an edge.
    stop = StopParams(max_output_tokens=40, end_ids=(model.end_id,))
    free, coded, thoughtful = prompts(3, least=20, most=40)
    several = model.request(regex(CODE, GrammarBackend.LLGUIDANCE), prompt=coded, stop=stop)
    return {
        FREE: model.request(None, prompt=free, stop=stop),
        CODED: msgspec.structs.replace(several, num_outputs=3),
        THOUGHTFUL: model.request(
            regex("(yes|no)", GrammarBackend.LLGUIDANCE),
            thinking=Thinking(end_text="[/THINK]", max_tokens=5),
            prompt=thoughtful,
            stop=stop,
        ),
    }


def generate(
    model: GuidedModel, config: EngineConfig, requests: dict[int, GenerationRequest]
) -> dict[OutputKey, list[int]]:
    loaded = describe(Executor(config, model.checkpoint))
    with running_loop_of(loaded, config, checkpoint=str(model.checkpoint)) as harness:
        for request_id, asked in requests.items():
            harness.submit(request_id, asked)
        run_until_ended(harness, requests)
        assert not any(harness.heard.failed.values())
        return dict(harness.heard.tokens)


@pytest.mark.device
def test_every_depth_says_the_same_within_its_grammars(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    checkpoint = tmp_path_factory.mktemp("model")
    make_checkpoint(checkpoint, TinyModel(vocabulary_size=VOCABULARY_SIZE))
    model = GuidedModel.of(save_byte_level_tokenizer(checkpoint))
    requests = make_requests(model)
    config = EngineConfig(
        device="cuda",
        dtype="float32",
        block_tokens=8,
        max_rows=8,
        max_step_tokens=48,
        max_context_tokens=128,
        kv_cache_tokens=1024,
        run_ahead=0,
    )

    tokens = generate(model, config, requests)

    for output_index in range(3):
        assert re.fullmatch(CODE, model.text(tokens[CODED, output_index]))
    reasoned = model.text(tokens[THOUGHTFUL, 0][5:]).removeprefix("[/THINK]")
    assert reasoned.strip(" \t\r\n") in ("yes", "no")
    for depth, every in itertools.product((1, 2), (0, 3)):
        ahead = replace(config, run_ahead=depth, fault_pause_every=every)
        assert generate(model, ahead, requests) == tokens
