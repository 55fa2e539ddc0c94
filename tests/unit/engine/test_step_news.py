"""What is told of steps whose rows come late, by plans made by hand."""

import numpy as np

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import FinishReason, StepNews
from antiphon_engine.api.request_times import Rest
from antiphon_engine.requests import Requests
from antiphon_engine.step_executor import StepBuffers, make_buffers
from antiphon_engine.step_news import StepLogprobs, collect_news
from support.loop_harness import request

FIRST_LIFE, SECOND_LIFE = 5 | 1 << 32, 5 | 2 << 32
"""Handles of two requests that had the same place in the core, one after the other."""
COUNTS = (
    "num_preemptions",
    "num_rests",
    "rest_ns",
    "num_batch_rows",
    "max_batch_rows",
    "num_device_reused",
    "num_host_reused",
    "num_recomputed",
)
NOTHING = (0, _native.FINISH_NONE, 0, 0)


class HandleCore:
    """A core that only gives out handles."""

    def __init__(self, *handles: int) -> None:
        self._handles = list(handles)

    def intern_scope(self, **_: str) -> int:
        return 1

    def submit(self, prompt: object, **_: object) -> int:
        return self._handles.pop(0)

    def abort(self, handle: int) -> bool:
        return True

    def times(self, handle: int) -> tuple[dict[str, int], np.ndarray, np.ndarray]:
        counts = dict.fromkeys(COUNTS, 0) | {"arrival_ns": 5, "num_steps": 9}
        return counts, np.array([[10, 20, 3, 1, 4, 2]]), np.array([[30, 40, 1]])


def requests_of(*handles: int) -> Requests:
    return Requests(HandleCore(*handles), vocabulary_size=100, weights="", num_reserved=8)


def step(handle: int, *, flags: int = 0, result: tuple[int, int, int, int]) -> StepBuffers:
    """A step with one row."""
    plan = make_buffers(EngineConfig(max_rows=4, max_step_tokens=32), max_blocks=4)
    plan["header"][_native.HEADER_NUM_ROWS] = 1
    plan["handle"][0] = handle
    plan["flags"][0] = flags
    plan["result"][0] = result
    plan["tokens"][0] = 42
    return plan


def news_of(plan: StepBuffers, requests: Requests) -> StepNews:
    return collect_news(plan, StepLogprobs(), requests, start_ns=1, end_ns=2)


def test_row_of_a_request_that_has_ended_says_nothing_of_who_has_its_place_now() -> None:
    requests = requests_of(FIRST_LIFE, SECOND_LIFE)
    requests.submit(1, request(3), arrival_ns=5)
    requests.cancel(1)
    requests.submit(2, request(4), arrival_ns=5)

    news = news_of(step(FIRST_LIFE, flags=_native.FLAG_FIRST, result=NOTHING), requests)

    assert (news.started, news.token_ids, news.ended) == ([], b"", [])
    assert requests.owner(FIRST_LIFE) is None
    started = news_of(step(SECOND_LIFE, flags=_native.FLAG_FIRST, result=(0, 0, 0, 1)), requests)
    assert [told.request_id for told in started.started] == [2]


def test_row_that_came_too_late_for_a_paused_request_takes_no_progress_back() -> None:
    requests = requests_of(FIRST_LIFE)
    requests.submit(1, request(3), arrival_ns=5)
    news_of(step(FIRST_LIFE, flags=_native.FLAG_FIRST, result=(1, 0, 6, 9)), requests)

    late = news_of(step(FIRST_LIFE, result=NOTHING), requests)
    [ended] = requests.cancel(1)

    assert late.token_ids == b""
    assert (ended.reason, ended.num_tokens) == (FinishReason.CANCELLED, 6)


def test_start_is_told_once_and_even_where_the_first_row_came_too_late() -> None:
    requests = requests_of(FIRST_LIFE)
    requests.submit(1, request(3), arrival_ns=5)
    first = step(FIRST_LIFE, flags=_native.FLAG_FIRST, result=NOTHING)

    told = [len(news_of(first, requests).started) for _ in range(2)]

    assert told == [1, 0]


def test_progress_is_that_of_the_last_row() -> None:
    requests = requests_of(FIRST_LIFE)
    requests.submit(1, request(3), arrival_ns=5)
    for num_tokens in (1, 2):
        news = news_of(step(FIRST_LIFE, result=(1, 0, num_tokens, num_tokens + 3)), requests)
        assert np.frombuffer(news.token_ids, np.int32).tolist() == [42]

    final = news_of(step(FIRST_LIFE, result=(1, _native.FINISH_END_ID, 3, 7)), requests)

    [ended] = final.ended
    assert (ended.reason, ended.num_tokens, ended.num_steps) == (FinishReason.END_ID, 3, 9)


def test_end_of_the_first_output_tells_what_the_core_has_stamped() -> None:
    requests = requests_of(FIRST_LIFE, SECOND_LIFE + 1)
    requests.submit(1, request(3, num_outputs=2), arrival_ns=5)

    first, second = requests.cancel(1)

    assert first.times is not None
    assert (first.times.arrival_ns, first.times.num_steps) == (5, 9)
    [chunk] = first.times.chunks
    assert (chunk.start_ns, chunk.end_ns, chunk.step) == (10, 20, 3)
    assert (chunk.num_steps, chunk.num_tokens, chunk.num_rows) == (1, 4, 2)
    assert first.times.rests == [Rest(start_ns=30, end_ns=40, held=True)]
    assert second.times is None


def test_row_that_brings_no_token_takes_none_from_what_an_end_tells() -> None:
    requests = requests_of(FIRST_LIFE)
    requests.submit(1, request(3), arrival_ns=5)
    news_of(step(FIRST_LIFE, result=(1, _native.FINISH_NONE, 4, 4)), requests)
    news_of(step(FIRST_LIFE, result=(0, _native.FINISH_NONE, 0, 5)), requests)

    (ended,) = requests.cancel(1)

    assert ended.num_tokens == 4
