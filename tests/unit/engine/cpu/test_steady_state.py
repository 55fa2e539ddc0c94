"""What steps that only decode take of memory, once they have begun."""

import pytest
from torch.profiler import ProfilerActivity, profile

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from support.loop_harness import request, running_loop_of
from support.tiny_checkpoints import TinyModel, make_checkpoint

NUM_ROWS, NUM_STEPS = 4, 100
HIDDEN_SIZE, VOCABULARY_SIZE = 64, 2048
"""Of the tiny model."""
CONFIG = EngineConfig(
    dtype="bfloat16",
    cpu_kernels="auto",
    num_threads=2,
    block_tokens=8,
    max_rows=NUM_ROWS,
    max_step_tokens=64,
    kv_cache_tokens=1024,
    max_context_tokens=256,
)


@pytest.fixture
def decoding(tmp_path):
    """A loop whose rows have all begun, and have more tokens to go than steps are looked at."""
    model = TinyModel(family="llama", vocabulary_size=VOCABULARY_SIZE)
    checkpoint = make_checkpoint(tmp_path, model)
    executor = describe(Executor(CONFIG, checkpoint))
    with running_loop_of(executor, CONFIG, checkpoint=str(checkpoint)) as loop:
        for request_id in range(1, NUM_ROWS + 1):
            sampling = SamplingParams(seed=0, temperature=0.0)
            stop = StopParams(max_output_tokens=NUM_STEPS + 50)
            loop.submit(request_id, request(1, 2, 3, sampling=sampling, stop=stop))
        for _ in range(10):
            loop.step()
        yield loop


def test_decode_steps_allocate_no_tensors_but_indices_and_the_rows_that_sample(decoding):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        for _ in range(NUM_STEPS):
            decoding.step()

    sizes = [
        event.self_cpu_memory_usage
        for event in profiled.events()
        if event.self_cpu_memory_usage > 0
    ]
    assert len(decoding.heard.steps) >= NUM_STEPS
    assert sizes, "nothing was counted"
    # What models, logits and draws work in was there before: nothing here is as wide as they are.
    assert max(sizes) <= NUM_ROWS * HIDDEN_SIZE * 4 < NUM_ROWS * VOCABULARY_SIZE * 4
    assert len(sizes) <= 15 * NUM_STEPS
