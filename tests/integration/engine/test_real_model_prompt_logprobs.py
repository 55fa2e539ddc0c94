"""A tiny model says of prompts what the reference says, however their computation is cut up."""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import (
    GenerationRequest,
    Hold,
    Release,
    StopParams,
)
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.loop_harness import LoopHarness, request, running_loop_of
from support.tiny_checkpoints import load_reference, make_checkpoint, prompts

FIRST, SECOND, THIRD = prompts(3, least=30, most=60)
# The second one goes on as the first does, to inside a block.
PROMPTS = [FIRST, [*FIRST[:21], *SECOND], THIRD[:2], THIRD]
STOP = StopParams(max_output_tokens=3)
NUM_TOP = 5
CONFIG = EngineConfig(
    dtype="float32",
    num_threads=1,
    block_tokens=8,
    max_rows=6,
    max_step_tokens=128,
    max_context_tokens=96,
    kv_cache_tokens=1024,
    max_requests=64,
)
# A request needs up to 12 blocks of 8: these hold little more than one.
TIGHT = {"kv_cache_tokens": 14 * 8, "capacity_policy": "max_utilization"}
CHUNKS = {
    "1": {"block_tokens": 1, "chunk_tokens": 1},
    "7": {"block_tokens": 7, "chunk_tokens": 7},
    "whole": {},
}
TROUBLES = {
    "none": {},
    "pauses": {**TIGHT, "fault_pause_every": 3},
    "host": {**TIGHT, "host_cache_bytes": 1 << 20},
    "no reuse": {**TIGHT, "prefix_reuse": False},
}


@dataclass(frozen=True, slots=True)
class Reference:
    checkpoint: Path
    logprobs: list[Tensor]
    """Of what follows each token of each prompt: [N, V]."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"))
    model = load_reference(checkpoint)
    with torch.inference_mode():
        logits = [model(torch.tensor([prompt])).logits[0, :-1].float() for prompt in PROMPTS]
    return Reference(checkpoint, [torch.log_softmax(each, dim=-1) for each in logits])


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def check_told(parts: Sequence[PromptLogprobs], prompt: Sequence[int], expected: Tensor) -> None:
    at = 1
    for part in parts:
        assert part.first_position == at
        at += part.num_positions
    assert at == len(prompt)
    chosen = torch.tensor([value for part in parts for value in array("f", part.chosen)])
    wanted = expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    torch.testing.assert_close(chosen, wanted, atol=1e-4, rtol=0)
    shape = (len(prompt) - 1, NUM_TOP)
    told = [value for part in parts for value in array("f", part.top_logprobs)]
    top_ids = [token_id for part in parts for token_id in array("i", part.top_ids)]
    top, ids = torch.tensor(told).reshape(shape), torch.tensor(top_ids).reshape(shape)
    torch.testing.assert_close(top, torch.topk(expected, NUM_TOP).values, atol=1e-4, rtol=0)
    torch.testing.assert_close(top, expected.gather(1, ids), atol=1e-4, rtol=0)


def run_held_now_and_then(harness: LoopHarness, num_requests: int) -> None:
    rng = random.Random(1)
    for _ in range(12):
        request_id = rng.randrange(num_requests)
        harness.send(Hold(request_id=request_id))
        harness.step()
        harness.send(Release(request_id=request_id))
        harness.step()
    harness.run()


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_log_probabilities_are_the_references(
    reference: Reference, chunk: str, trouble: str
) -> None:
    ahead = list(TROUBLES).index(trouble) % 3
    config = replace(CONFIG, **CHUNKS[chunk], **TROUBLES[trouble], run_ahead=ahead)
    model = describe(Executor(config, reference.checkpoint))
    plain = [request(*prompt, stop=STOP) for prompt in PROMPTS]
    asking: list[GenerationRequest] = [
        request(*prompt, stop=STOP, num_outputs=1 + index % 2, prompt_logprobs=NUM_TOP)
        for index, prompt in enumerate(PROMPTS)
    ]

    with running_loop_of(model, config) as harness:
        # Twice beside each other, and between two that may find them cached and be found.
        for request_id, asked in enumerate([*asking, *plain, *asking]):
            harness.submit(request_id, asked)
        run_held_now_and_then(harness, 3 * len(PROMPTS))

        heard = harness.heard
        for request_id in [*range(len(PROMPTS)), *range(2 * len(PROMPTS), 3 * len(PROMPTS))]:
            index = request_id % len(PROMPTS)
            check_told(heard.prompts[request_id], PROMPTS[index], reference.logprobs[index])
            assert heard.tokens[request_id, 0] == heard.tokens[len(PROMPTS) + index, 0]
        stats = harness.stats()
        assert stats.num_blocks_used == 0
        assert stats.num_preemptions_total > 0 or trouble != "pauses"
