"""Long prompts beside streams and short requests: the streams go on, and the short ones begin."""

from collections.abc import Iterator
from itertools import count

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import GenerationRequest, StopParams
from support.loop_harness import LoopHarness, request, running_loop
from support.scripted_engine import Script

CONTEXT_TOKENS = 2048
STEP_TOKENS = 128
NUM_STREAMS = 8
STREAMS = range(1000, 1000 + NUM_STREAMS)
MAX_GAP_STEPS = 3
"""Between two tokens of a stream."""
NUM_SHORT_TOKENS = 101
GIANT = 1
GIANT_TOKENS = CONTEXT_TOKENS - 64
MAX_GIANT_STEPS = 2 * GIANT_TOKENS // STEP_TOKENS
"""Streams and short requests leave it half of each step at least."""
NUM_STEADY = 8
STEADY_TOKENS = CONTEXT_TOKENS // 4
STEPS_BETWEEN = 6
"""From one of the prompts that keep coming to the next; each takes five steps by itself."""
MAX_STEADY_STEPS = 2 * STEPS_BETWEEN
"""To a short request's first token beside those."""
POLICIES = {"first_come_first_served": MAX_GIANT_STEPS, "equal_progress": 4}
"""In how many steps a short request has its first token: behind the giant, or beside it."""


def of(num_prompt: int, num_output: int, first_id: int) -> GenerationRequest:
    """A request whose prompt begins like no other's."""
    prompt = [first_id, *(position * 7 % 900 for position in range(num_prompt - 1))]
    return request(*prompt, stop=StopParams(max_output_tokens=num_output))


class Traffic:
    """Streams that run on and on, and fail the test where one of them waits."""

    def __init__(self, loop: LoopHarness) -> None:
        self.loop = loop
        self._gaps = dict.fromkeys(STREAMS, 0)
        self._short_ids = count(2000)
        for request_id in STREAMS:
            loop.submit(request_id, of(5, CONTEXT_TOKENS - 5, request_id))
        while not all(map(self.begun, STREAMS)):
            loop.step()

    def begun(self, request_id: int) -> bool:
        return bool(self.loop.heard.tokens[request_id, 0])

    def step(self) -> None:
        before = self._nums_told()
        self.loop.step()
        for request_id, num_told in self._nums_told().items():
            waits = num_told == before[request_id]
            self._gaps[request_id] = self._gaps[request_id] + 1 if waits else 0
            assert self._gaps[request_id] <= MAX_GAP_STEPS

    def steps_of_a_short_request(self) -> int:
        """Sends one; returns how many steps it took to its first token."""
        request_id = next(self._short_ids)
        self.loop.submit(request_id, of(NUM_SHORT_TOKENS, 1, request_id))
        num_steps = 0
        while not self.begun(request_id):
            num_steps += 1
            self.step()
        return num_steps

    def _nums_told(self) -> dict[int, int]:
        return {request_id: len(self.loop.heard.tokens[request_id, 0]) for request_id in STREAMS}


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def traffic(policy: str) -> Iterator[Traffic]:
    script = Script(context_tokens=CONTEXT_TOKENS, vocabulary_size=4096)
    config = EngineConfig(
        chunk_policy=policy,
        max_step_tokens=STEP_TOKENS,
        max_rows=2 * NUM_STREAMS,
        kv_cache_tokens=2 * NUM_STREAMS * CONTEXT_TOKENS,
    )
    with running_loop(script, config) as loop:
        yield Traffic(loop)


def test_a_prompt_as_long_as_the_context_holds_up_no_stream(traffic: Traffic, policy: str) -> None:
    traffic.loop.submit(GIANT, of(GIANT_TOKENS, 1, GIANT))
    num_giant_steps = 0
    while not traffic.begun(GIANT):
        num_steps = traffic.steps_of_a_short_request()
        num_giant_steps += num_steps
        assert num_steps <= POLICIES[policy]

    assert num_giant_steps <= MAX_GIANT_STEPS + 1


def test_prompts_that_keep_coming_hold_up_neither_streams_nor_short_requests(
    traffic: Traffic,
) -> None:
    steady = range(GIANT + 1, GIANT + 1 + NUM_STEADY)
    for request_id in steady:
        traffic.loop.submit(request_id, of(STEADY_TOKENS, 1, request_id))
        num_steps = traffic.steps_of_a_short_request()
        assert num_steps <= MAX_STEADY_STEPS
        for _ in range(num_steps, STEPS_BETWEEN):
            traffic.step()
    for _ in range(MAX_STEADY_STEPS):
        traffic.step()

    assert all(map(traffic.begun, steady))
