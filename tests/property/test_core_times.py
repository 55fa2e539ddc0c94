"""What the core stamps of a request, beside a model without bounds, at every depth of run-ahead."""

from dataclasses import replace

import pytest

from antiphon_engine.api.request_times import RequestTimes
from antiphon_engine.core_times import read_times
from support.core_model import CoreModel
from support.core_times import MAX_CHUNKS, MAX_RESTS
from support.core_values import Ask, CoreShape

DEPTHS = (0, 1, 2)
ROOMY = CoreShape(num_blocks=200, max_context_tokens=150, max_step_tokens=4, chunk_tokens=2)
PROMPT = tuple(range(90))


def seven(_history: object, _uniform: float) -> int:
    return 7


def life(shape: CoreShape, *asks: Ask) -> tuple[CoreModel, list[RequestTimes]]:
    """Runs requests to their ends on a clock that goes on, and returns what is known of them."""
    model = CoreModel(shape)
    scope = model.scope("one")
    handles = [model.submit(replace(ask, scope=scope)) for ask in asks]
    while model.requests:
        model.step(seven)
        model.check()
        model.now_us += 10
    return model, [read_times(model.core, handle) for handle in handles]


@pytest.mark.parametrize("run_ahead", DEPTHS)
def test_chunks_add_up_to_the_prompt_and_lie_before_the_first_token(run_ahead):
    shape = replace(ROOMY, run_ahead=run_ahead)

    _, [times] = life(shape, Ask(prompt=PROMPT, scope=0, max_output=5))

    assert len(times.chunks) == MAX_CHUNKS
    assert sum(chunk.num_tokens for chunk in times.chunks) == len(PROMPT)
    assert sum(chunk.num_steps for chunk in times.chunks) == len(PROMPT) // 2
    assert times.num_steps == len(PROMPT) // 2 + 5 - 1
    starts = [chunk.start_ns for chunk in times.chunks]
    ends = [chunk.end_ns for chunk in times.chunks]
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert times.arrival_ns <= starts[0]


def test_facts_do_not_depend_on_how_far_steps_are_planned_ahead():
    told = []
    for run_ahead in DEPTHS:
        shape = replace(ROOMY, run_ahead=run_ahead)
        asks = [Ask(prompt=PROMPT[: 20 + 7 * i], scope=0, max_output=6) for i in range(3)]
        _, all_times = life(shape, *asks)
        told.append(
            [
                (
                    [chunk.num_tokens for chunk in times.chunks],
                    times.num_steps,
                    times.num_device_reused,
                    times.num_recomputed,
                    times.rests,
                )
                for times in all_times
            ]
        )

    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("run_ahead", DEPTHS)
def test_pauses_are_told_with_their_instants_up_to_a_bound(run_ahead):
    shape = replace(ROOMY, run_ahead=run_ahead, pause_every=3)

    _, [times] = life(shape, Ask(prompt=PROMPT[:10], scope=0, max_output=90))

    assert times.num_preemptions == times.num_rests > MAX_RESTS == len(times.rests)
    assert all(rest.start_ns <= rest.end_ns and not rest.held for rest in times.rests)
    assert times.num_recomputed == 0  # Nobody took its blocks meanwhile.
    assert len(times.chunks) == 5


def test_what_is_lost_in_a_rest_is_computed_again_and_is_no_reuse():
    shape = replace(ROOMY, pause_every=3, prefix_reuse=False)

    _, [times] = life(shape, Ask(prompt=PROMPT[:10], scope=0, max_output=9))

    assert times.num_recomputed >= 10 * times.num_preemptions > 0
    assert (times.num_device_reused, times.num_host_reused) == (0, 0)
    assert sum(chunk.num_tokens for chunk in times.chunks) == 10


def test_a_hold_is_a_rest_at_its_callers_wish_and_none_before_the_first_step():
    model = CoreModel(ROOMY)
    ask = Ask(prompt=PROMPT[:10], scope=model.scope("one"), max_output=20)
    handle = model.submit(ask)
    model.hold(handle)
    model.now_us += 50
    model.release(handle)
    for _ in range(8):
        model.step(seven)
        model.now_us += 10
    model.hold(handle)
    model.now_us += 100
    model.release(handle)
    model.run(seven)

    times = read_times(model.core, handle)

    [rest] = times.rests
    assert rest.held
    assert rest.end_ns - rest.start_ns >= 90_000
    assert times.num_preemptions == 0


def test_what_came_back_from_the_host_is_told_apart():
    shape = CoreShape(num_blocks=9, num_host_blocks=32, max_context_tokens=16)
    model = CoreModel(shape)
    scope = model.scope("one")
    first = Ask(prompt=tuple(range(12)), scope=scope, max_output=1)
    model.submit(first)
    model.run(seven)
    model.submit(Ask(prompt=tuple(range(50, 62)), scope=scope, max_output=4))
    model.run(seven)
    handle = model.submit(first)
    model.run(seven)

    times = read_times(model.core, handle)

    assert times.num_host_reused > 0
    num_computed = sum(chunk.num_tokens for chunk in times.chunks)
    assert times.num_device_reused + times.num_host_reused + num_computed == 12
    assert times.num_host_reused == 2 * model.stats()["num_onloads_total"]
