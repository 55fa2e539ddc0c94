"""Guided outputs of a tiny model are the same whatever the engine does to them meanwhile.

What they must be is known from another library's logits and masks made one after the other. Every
two disturbances meet in some run; `--scale` above 1 has them all meet.
"""

import json
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_all

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.grammar import Grammar, GrammarBackend, Thinking
from antiphon_engine.api.messages import (
    FinishOutput,
    GenerationRequest,
    Hold,
    Release,
    SamplingParams,
    StopParams,
)
from antiphon_engine.executor import Executor
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.base import mask_words
from antiphon_engine.grammar.filling import MaskFiller
from antiphon_engine.grammar.guide import EndRules, Guide
from antiphon_engine.grammar.thinking import EndMarker, ThinkingGate
from antiphon_engine.loading import describe
from antiphon_server.constraints.json_schema import PlanLimits
from antiphon_server.constraints.structural_tags import plan_tag
from support.covering import all_of, pairwise
from support.grammars import regex, schema
from support.late_masks import LateFiller, ReluctantFiller
from support.loop_harness import LoopHarness, running_loop_of
from support.tiny_checkpoints import VOCABULARY_SIZE, load_reference, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

NUM_TOKENS = 22
CUT = 5
"""Tokens that are there when an output is disturbed."""
_DEADLINE_S = 180.0
"""What hangs is told by; threads of low priority make masks, and others may have the cores."""
LLGUIDANCE, XGRAMMAR = GrammarBackend.LLGUIDANCE, GrammarBackend.XGRAMMAR
ROW = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "of": {"type": "string", "maxLength": 5}},
    "required": ["on", "of"],
    "additionalProperties": False,
}
ITEMS = 'root ::= item{5,}\nitem ::= "<" item* ">" | [xyz] item?'
TAGGED = {
    "type": "sequence",
    "elements": [
        {
            "type": "tag",
            "begin": "<on>",
            "content": {
                "type": "json_schema",
                "json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
            },
            "end": ["</on>", "."],
        },
        {"type": "regex", "pattern": "[k-p]{2,4}"},
    ],
}
ASKED: Sequence[tuple[Grammar | None, Thinking | None]] = (
    (None, None),
    (schema(ROW, LLGUIDANCE), None),
    (regex("([a-e]{2}[0-9])+", LLGUIDANCE), None),
    (Grammar(backend=XGRAMMAR, text=ITEMS), None),
    (regex("(yes|no), (of course|never)", XGRAMMAR), Thinking(end_text="</think>", max_tokens=4)),
    (None, Thinking(end_text="\n--\n", max_tokens=6)),
    (
        plan_tag(json.dumps({"format": TAGGED}), max_blank=1, limits=PlanLimits()),
        Thinking(end_text="</think>", max_tokens=2),
    ),
)
PROMPTS = prompts(len(ASKED), least=20, most=40)
AXES: dict[str, Sequence[object]] = {
    "masks": (MaskFiller, LateFiller, ReluctantFiller),
    "run_ahead": (0, 1, 2),
    "pause_every": (0, 1, 3),
    "chunk_tokens": (0, 8),
    "miss_every": (0, 1),
    "disturbance": ("none", "hold", "interrupt", "recovery"),
}
CONFIG = EngineConfig(
    dtype="float32",
    num_threads=1,
    block_tokens=8,
    max_rows=7,
    max_step_tokens=96,
    max_context_tokens=96,
    kv_cache_tokens=1024,
    max_requests=64,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint, and what it says to each that is asked."""

    checkpoint: Path
    requests: Sequence[GenerationRequest]
    expected: Sequence[list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    # More threads would take longer where others have the cores, and so small a model needs none.
    torch.set_num_threads(1)
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"))
    save_byte_level_tokenizer(checkpoint)
    backends = Backends.load(checkpoint, vocabulary_size=VOCABULARY_SIZE)
    end_id = backends.vocabulary.tokens.index(b"<|im_end|>")
    requests = [
        GenerationRequest(
            prompt=array("i", prompt).tobytes(),
            sampling=SamplingParams(seed=1, temperature=0.0),
            stop=StopParams(max_output_tokens=NUM_TOKENS, end_ids=(end_id,)),
            grammar=grammar,
            thinking=thinking,
        )
        for prompt, (grammar, thinking) in zip(PROMPTS, ASKED, strict=True)
    ]
    likeliest = Likeliest(checkpoint, backends)
    return Model(
        checkpoint=checkpoint,
        requests=requests,
        expected=[likeliest.output(request) for request in requests],
    )


class Likeliest:
    """What a model says, one token after the other, by the transformers library."""

    def __init__(self, checkpoint: Path, backends: Backends) -> None:
        self._model = load_reference(checkpoint)
        self._backends = backends

    def output(self, request: GenerationRequest) -> list[int]:
        guide = self._guide(request)
        ids, output = np.frombuffer(request.prompt, np.int32).tolist(), list[int]()
        while len(output) < NUM_TOKENS and output[-1:] != list(request.stop.end_ids):
            with torch.inference_mode():
                logits = self._model(torch.tensor([ids + output])).logits[0, -1].numpy()
            if guide.restricts:
                words = np.zeros((1, mask_words(VOCABULARY_SIZE)), np.int32)
                guide.fill(words)
                bits = np.unpackbits(words.view(np.uint8), bitorder="little")
                logits = np.where(bits[:VOCABULARY_SIZE], logits, -np.inf)
            output.append(int(logits.argmax()))
            if output[-1] not in request.stop.end_ids:
                guide.accept(output[-1])
        return output

    def _guide(self, request: GenerationRequest) -> Guide:
        grammar, thinking, backends = request.grammar, request.thinking, self._backends
        gate = None
        if thinking is not None:
            gate = ThinkingGate(thinking, EndMarker.of(thinking.end_text, backends.vocabulary))
        return Guide(
            EndRules.of(request.stop, backends.vocabulary),
            matcher=backends.compile(grammar).matcher() if grammar is not None else None,
            backend=backends[grammar.backend] if grammar is not None else None,
            gate=gate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """How the engine is set, and what is done to each output."""

    masks: type[MaskFiller]
    run_ahead: int
    pause_every: int
    chunk_tokens: int
    miss_every: int
    disturbance: str

    @property
    def config(self) -> EngineConfig:
        return replace(
            CONFIG,
            run_ahead=self.run_ahead,
            chunk_tokens=self.chunk_tokens,
            fault_pause_every=self.pause_every,
            fault_miss_every=self.miss_every,
        )

    @contextmanager
    def loop(self, model: Model) -> Iterator[LoopHarness]:
        described = describe(Executor(self.config, model.checkpoint))
        with running_loop_of(
            described, self.config, checkpoint=str(model.checkpoint), filler=self.masks
        ) as harness:
            yield harness

    def outputs(self, model: Model) -> list[list[int]]:
        """Returns what the model says to each, in parts where an output was cut."""
        numbers = range(len(model.requests))
        with self.loop(model) as harness:
            for number in numbers:
                harness.submit(number, model.requests[number])
            if self.disturbance == "recovery":
                step_until(harness, numbers, CUT)
                kept = [harness.heard.tokens[number, 0] for number in numbers]
            else:
                kept = self._disturb(harness, model)
                step_until(harness, numbers, None)
                check_at_rest(harness)
        rest: list[list[int]] = [[] for _ in numbers]
        if self.disturbance == "recovery":
            rest = self._rest(model, kept)
        return [[*before, *behind] for before, behind in zip(kept, rest, strict=True)]

    def _disturb(self, harness: LoopHarness, model: Model) -> list[list[int]]:
        numbers = range(len(model.requests))
        step_until(harness, numbers, CUT)
        if self.disturbance == "hold":
            for number in numbers:
                harness.send(Hold(request_id=number))
            for _ in range(3):
                harness.step_or_wait()
            for number in numbers:
                harness.send(Release(request_id=number))
        if self.disturbance != "interrupt":
            step_until(harness, numbers, None)
            return [harness.heard.tokens[number, 0] for number in numbers]
        kept = []
        for number in numbers:
            kept.append(harness.heard.tokens[number, 0][:CUT])
            harness.send(FinishOutput(request_id=number, output_index=0, keep_tokens=CUT))
        for number in numbers:
            harness.submit(number + 100, resumed(model.requests[number], kept[number]))
        step_until(harness, [number + 100 for number in numbers], None)
        return [kept[number] + harness.heard.tokens[number + 100, 0] for number in numbers]

    def _rest(self, model: Model, kept: Sequence[list[int]]) -> list[list[int]]:
        """Has another loop go on, as after the end of the first one's process."""
        with self.loop(model) as harness:
            going_on = []
            for number, request in enumerate(model.requests):
                if len(kept[number]) < len(model.expected[number]):
                    harness.submit(number, resumed(request, kept[number]))
                    going_on.append(number)
            step_until(harness, going_on, None)
            check_at_rest(harness)
            return [harness.heard.tokens[number, 0] for number in range(len(kept))]


def resumed(request: GenerationRequest, kept: Sequence[int]) -> GenerationRequest:
    prompt = request.prompt + array("i", kept).tobytes()
    return replace_all(request, prompt=prompt, num_resumed_tokens=len(kept))


def step_until(harness: LoopHarness, numbers: Sequence[int], num_tokens: int | None) -> None:
    """Steps until requests have so many tokens or have ended; None: until they have ended."""
    deadline = time.monotonic() + _DEADLINE_S

    def is_there(number: int) -> bool:
        assert number not in harness.heard.failed, harness.heard.failed[number]
        has_enough = num_tokens is not None and len(harness.heard.tokens[number, 0]) >= num_tokens
        return has_enough or (number, 0) in harness.heard.ended

    while not all(is_there(number) for number in numbers):
        assert time.monotonic() < deadline
        harness.step_or_wait()


def check_at_rest(harness: LoopHarness) -> None:
    harness.run()
    stats = harness.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_paused, stats.num_held) == (0, 0, 0, 0)
    assert stats.num_blocks_used == 0


def test_what_is_asked_is_guided_and_not_all_alike(model: Model) -> None:
    assert len({tuple(output) for output in model.expected}) == len(model.expected)
    assert any(len(output) < NUM_TOKENS for output in model.expected)
    assert all(len(output) > CUT for output in model.expected)


def test_disturbances_change_no_output(model: Model, scale: int) -> None:
    combinations = pairwise(AXES) if scale == 1 else all_of(AXES)
    for combination in combinations:
        assert Disturbed(**combination).outputs(model) == model.expected, combination
