"""What steps that only decode take of memory, once they have begun."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.loop_harness import request, running_loop_of
from support.tiny_checkpoints import TinyModel, make_checkpoint

NUM_STEPS = 100
NUM_FIRST_STEPS = 10
"""In which all rows have begun."""
MAX_ROWS = 16
CONFIG = EngineConfig(
    dtype="bfloat16",
    cpu_kernels="auto",
    num_threads=2,
    block_tokens=8,
    max_rows=MAX_ROWS,
    max_step_tokens=64,
    kv_cache_tokens=4096,
    max_context_tokens=256,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    model = TinyModel(family="llama", vocabulary_size=2048)
    return make_checkpoint(tmp_path_factory.mktemp("tiny"), model)


@pytest.fixture(scope="module")
def model(checkpoint):
    return describe(Executor(CONFIG, checkpoint))


def sizes_of_tensors(loop):
    """Has steps run; returns what each new tensor takes of memory."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        for _ in range(NUM_STEPS):
            loop.step()
        torch.ones(7)
    sizes = [event.self_cpu_memory_usage for event in profiled.events()]
    allocated = [size for size in sizes if size > 0]
    assert allocated.pop() == 28, "the profiler counts"
    return allocated


GREEDY = {"temperature": 0.0}
KINDS_OF_DRAWS = [{}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.05}]


@pytest.mark.parametrize("num_rows", [1, MAX_ROWS])
@pytest.mark.parametrize(
    "kinds", [[GREEDY], *([kind] for kind in KINDS_OF_DRAWS), [GREEDY, *KINDS_OF_DRAWS]], ids=str
)
def test_decode_steps_allocate_no_tensors(checkpoint, model, kinds, num_rows):
    with running_loop_of(model, CONFIG, checkpoint=str(checkpoint)) as loop:
        for request_id in range(1, num_rows + 1):
            stop = StopParams(max_output_tokens=NUM_FIRST_STEPS + NUM_STEPS + 40)
            sampling = SamplingParams(seed=request_id, **kinds[request_id % len(kinds)])
            loop.submit(request_id, request(1, 2, request_id, sampling=sampling, stop=stop))
        for _ in range(NUM_FIRST_STEPS):
            loop.step()

        sizes = sizes_of_tensors(loop)

    num_tokens = [len(tokens) for tokens in loop.heard.tokens.values()]
    assert num_tokens == [NUM_FIRST_STEPS + NUM_STEPS] * num_rows
    assert sizes == []
