"""A tiny model says the same within its grammars, whatever the engine does to its requests."""

import itertools
import json
import re
from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import msgspec
import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.grammar import GrammarBackend, Thinking
from antiphon_engine.api.messages import (
    FinishReason,
    GenerationRequest,
    Hold,
    Release,
    SamplingParams,
    StopParams,
)
from antiphon_engine.engine_process import LoadedModel
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.grammars import regex, schema
from support.graph_model import RecorderThatRepeats, load_on_cpu
from support.guided_loop import (
    VOCABULARY_SIZE,
    GuidedModel,
    run_to_ends,
    run_until_ended,
)
from support.loop_harness import LoopHarness, OutputKey, running_loop_of
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

CONFIG = EngineConfig(
    dtype="float32",
    num_threads=1,
    block_tokens=8,
    max_rows=8,
    max_step_tokens=48,
    max_context_tokens=160,
    kv_cache_tokens=1024,
    max_requests=64,
    # On a busy machine a first mask may take its time.
    grammar_step_limit_ms=5000,
)
SHAPE = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99},
        "state": {"enum": ["open", "paid", "gone"]},
        "sure": {"type": "boolean"},
    },
    "required": ["id", "state"],
    "additionalProperties": False,
}
CODE = "[a-f]{2}-[0-9]{1,4}(-x)*"
ANSWERS = ("yes", "no", "perhaps")
MARKER = "[/THINK]"
PROMPTS = prompts(4, least=20, most=40)
FREE, SHAPED, CODED, THOUGHTFUL = range(1, 5)
NUM_CODES = 3


@dataclass(frozen=True, slots=True)
class Reference:
    model: GuidedModel
    requests: dict[int, GenerationRequest]
    tokens: dict[OutputKey, list[int]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    checkpoint = tmp_path_factory.mktemp("model")
    make_checkpoint(checkpoint, TinyModel(vocabulary_size=VOCABULARY_SIZE))
    save_byte_level_tokenizer(checkpoint)
    model = GuidedModel.of(checkpoint)
    requests = make_requests(model)
    return Reference(model, requests, generate(checkpoint, CONFIG, requests))


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_requests(model: GuidedModel) -> dict[int, GenerationRequest]:
    sampling = SamplingParams(seed=11, temperature=1.0, top_k=40)
    stop = StopParams(max_output_tokens=64, end_ids=(model.end_id,))
    asked = [
        model.request(None, prompt=PROMPTS[0], sampling=sampling, stop=stop),
        model.request(schema(SHAPE, max_blank=2), prompt=PROMPTS[1], sampling=sampling, stop=stop),
        msgspec.structs.replace(
            model.request(
                regex(CODE, GrammarBackend.LLGUIDANCE),
                prompt=PROMPTS[2],
                sampling=msgspec.structs.replace(sampling, repetition_penalty=1.3),
                stop=msgspec.structs.replace(stop, min_output_tokens=12),
            ),
            num_outputs=NUM_CODES,
        ),
        model.request(
            regex("|".join(ANSWERS)),
            thinking=Thinking(end_text=MARKER, max_tokens=7),
            prompt=PROMPTS[3],
            sampling=sampling,
            stop=stop,
        ),
    ]
    return dict(enumerate(asked, start=1))


def generate(
    checkpoint: Path, config: EngineConfig, requests: dict[int, GenerationRequest]
) -> dict[OutputKey, list[int]]:
    return generate_by(describe(Executor(config, checkpoint)), config, checkpoint, requests)


def generate_by(
    loaded: LoadedModel,
    config: EngineConfig,
    checkpoint: Path,
    requests: dict[int, GenerationRequest],
) -> dict[OutputKey, list[int]]:
    with running_loop_of(loaded, config, checkpoint=str(checkpoint)) as harness:
        for request_id, asked in requests.items():
            harness.submit(request_id, asked)
        run_until_ended(harness, requests)
        check_at_rest(harness)
        return dict(harness.heard.tokens)


def check_at_rest(harness: LoopHarness) -> None:
    harness.run()
    stats = harness.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_paused) == (0, 0, 0)
    assert stats.num_blocks_used == 0
    assert not any(harness.heard.failed.values())


def test_outputs_satisfy_their_grammars(reference: Reference) -> None:
    text = {
        key: reference.model.text(ids)
        for key, ids in reference.tokens.items()
        if key[0] in (SHAPED, CODED)
    }

    jsonschema.validate(json.loads(text[SHAPED, 0]), SHAPE)
    codes = [text[CODED, i] for i in range(NUM_CODES)]
    # The least output may be longer than the budget lets a code end.
    assert all(re.fullmatch(CODE, code) or len(code) > 30 for code in codes)
    assert len(set(codes)) > 1
    said = reference.tokens[THOUGHTFUL, 0][7:]
    assert reference.model.text(said).removeprefix(MARKER).strip(" \t\r\n") in ANSWERS


DISTURBANCES: list[dict[str, int | str]] = [
    {},
    {"fault_pause_every": 1},
    {"fault_pause_every": 3},
    {"chunk_policy": "equal_progress", "chunk_tokens": 8},
    {"chunk_policy": "equal_progress", "chunk_tokens": 8, "fault_pause_every": 4},
    {"max_step_tokens": 16, "fault_miss_every": 2},
    {
        "capacity_policy": "max_utilization",
        "watermark_blocks": 0,
        "cooldown_steps": 1,
        "kv_cache_tokens": 24 * 8,
    },
    {"kv_cache_tokens": 20 * 8, "host_cache_bytes": 1 << 20, "fault_pause_every": 5},
]


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("settings", DISTURBANCES, ids=str)
def test_no_disturbance_changes_a_token(
    reference: Reference, settings: dict[str, int | str], ahead: int
) -> None:
    config = replace(CONFIG, run_ahead=ahead, **settings)

    assert generate(reference.model.checkpoint, config, reference.requests) == reference.tokens


def test_draws_behind_captured_steps_are_those_of_the_plain_executor(
    reference: Reference,
) -> None:
    config = replace(CONFIG, cpu_kernels="torch", run_ahead=1, fault_pause_every=4)
    captured, _ = load_on_cpu(config, reference.model.checkpoint, recorder=RecorderThatRepeats())

    tokens = generate_by(captured, config, reference.model.checkpoint, reference.requests)

    assert tokens == reference.tokens
    assert captured.draws is not None
    assert captured.draws.num_replays > 10


@pytest.mark.parametrize(("ahead", "every"), [(0, 0), (2, 0), (1, 3)])
def test_every_cut_goes_on_with_the_tokens_of_the_uncut_output(
    reference: Reference, ahead: int, every: int
) -> None:
    config = replace(CONFIG, run_ahead=ahead, fault_pause_every=every)
    model = describe(Executor(config, reference.model.checkpoint))
    checkpoint = str(reference.model.checkpoint)
    with running_loop_of(model, config, checkpoint=checkpoint) as harness:
        for request_id in (SHAPED, THOUGHTFUL):
            whole = reference.tokens[request_id, 0]
            # Under the cut as its id. All at once: rows beside each other cost little.
            cuts = {
                (request_id << 16) + num: reference.requests[request_id].resumed_behind(
                    array("i", whole[:num])
                )
                for num in range(1, len(whole), 2)
            }
            run_to_ends(harness, cuts)

            for resumed_id in cuts:
                num = resumed_id & 0xFFFF
                assert whole[:num] + harness.heard.tokens[resumed_id, 0] == whole
                (ended,) = harness.heard.ended[resumed_id, 0]
                assert ended.reason is FinishReason.END_ID
                assert ended.num_tokens == len(whole)
        check_at_rest(harness)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_holds_change_no_token(reference: Reference, ahead: int) -> None:
    config = replace(CONFIG, run_ahead=ahead)
    model = describe(Executor(config, reference.model.checkpoint))
    checkpoint = str(reference.model.checkpoint)
    with running_loop_of(model, config, checkpoint=checkpoint) as harness:
        for request_id, asked in reference.requests.items():
            harness.submit(request_id, asked)
        for held_id in itertools.islice(itertools.cycle(reference.requests), 100):
            harness.send(Hold(request_id=held_id))
            harness.step()
            harness.send(Release(request_id=held_id))
            harness.step()
        run_until_ended(harness, reference.requests)
        check_at_rest(harness)

        assert dict(harness.heard.tokens) == reference.tokens
