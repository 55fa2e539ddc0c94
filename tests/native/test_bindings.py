"""What the Python face of the core refuses, and how."""

import gc
import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from antiphon_engine import _native
from antiphon_engine.api.messages import CoreStats
from support.core_model import CoreModel
from support.core_values import Ask, CoreShape

SHAPE = CoreShape()


def good_buffers():
    return SHAPE.make_buffers()


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("tokens", np.zeros((3, 1), np.int64), "type int32"),
        ("uniform", np.zeros(3, np.float32), "type float64"),
        ("result", np.zeros((4, 3), np.int32).T, "C-contiguous"),
        ("result", np.zeros((3, 5), np.int32), "rows of 4"),
        ("cu_q", np.zeros(3, np.int32), "at least 4 elements"),
        ("input_ids", np.zeros((8, 1), np.int32), "at least 8 elements"),
        ("slot", [0, 0, 0], "type int32"),
        ("table_delta", np.zeros((1, 3), np.int32), "table_delta has room for 1"),
        ("copy_ops", np.zeros((1, 5), np.int32), "copy_ops has room for 1"),
    ],
)
def test_buffer_of_another_shape_or_type_is_refused_by_name(name, array, says):
    core = SHAPE.make_core()

    with pytest.raises(ValueError, match=says) as refused:
        core.register_buffers(0, **{**good_buffers(), name: array})

    assert name in str(refused.value)


def test_read_only_buffer_is_refused():
    buffers = good_buffers()
    buffers["header"].flags.writeable = False

    with pytest.raises(ValueError, match="header must be writeable"):
        SHAPE.make_core().register_buffers(0, **buffers)


def test_missing_and_unknown_buffers_are_refused():
    missing = good_buffers()
    del missing["slot_init"]

    with pytest.raises(ValueError, match="slot_init"):
        SHAPE.make_core().register_buffers(0, **missing)
    with pytest.raises(ValueError, match="does not know"):
        SHAPE.make_core().register_buffers(0, **good_buffers(), extra=np.zeros(1))


def test_larger_buffers_are_taken():
    larger = replace(SHAPE, max_rows=10, max_step_tokens=100, max_context_tokens=100)

    SHAPE.make_core().register_buffers(0, **larger.make_buffers())


def test_core_keeps_its_buffers_alive():
    core = SHAPE.make_core()
    core.register_buffers(0, **good_buffers())
    gc.collect()
    scope = core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
    Ask(prompt=(1, 2), scope=scope).submit_to(core)

    assert core.plan(0) == 1


@pytest.mark.parametrize("prompt", [np.zeros(3, np.int64), np.zeros((2, 2), np.int32)])
def test_prompt_of_another_type_or_rank_is_refused(prompt):
    core = SHAPE.make_core()
    scope = core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
    none = np.zeros(0, np.int32)

    with pytest.raises((TypeError, ValueError)):
        core.submit(prompt, scope=scope, max_output_tokens=1, end_ids=none, stop_ids=none, seed=0)


def test_errors_are_of_the_types_that_callers_catch():
    assert issubclass(_native.NeverFitsError, ValueError)
    assert issubclass(_native.QueueFullError, RuntimeError)
    assert issubclass(_native.InvariantError, RuntimeError)

    with pytest.raises(_native.InvariantError, match=r"committing\.cc"):
        SHAPE.make_core().commit(1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"capacity_policy": "greedy"}, "guaranteed_no_evict, max_utilization, static_batch"),
        ({"chunk_policy": "fair"}, "first_come_first_served, equal_progress"),
        ({"run_ahead": 3}, "run_ahead must be 0, 1 or 2"),
        ({"num_buffer_sets": 1, "run_ahead": 1}, "num_buffer_sets must be more than run_ahead"),
        ({"miss_every": -1}, "miss_every"),
    ],
)
def test_setting_that_cannot_work_is_refused_by_name(settings, says):
    sizes = asdict(SHAPE) | settings

    with pytest.raises(ValueError, match=says):
        _native.EngineCore(**sizes)


def test_missing_and_unknown_settings_are_refused():
    sizes = asdict(SHAPE)

    with pytest.raises(TypeError, match=r"does not know the argument num_block$"):
        _native.EngineCore(**sizes, num_block=1)
    del sizes["num_blocks"]
    with pytest.raises(TypeError, match="needs the argument num_blocks"):
        _native.EngineCore(**sizes)


def test_tokens_of_a_request_are_a_copy_and_nothing_when_it_is_gone():
    core = SHAPE.make_core()
    core.register_buffers(0, **good_buffers())
    scope = core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
    handle = Ask(prompt=(5, 6), scope=scope).submit_to(core)

    tokens = core.tokens(handle)
    core.abort(handle)

    assert tokens.tolist() == [5, 6]
    assert core.tokens(handle).tolist() == []


def test_path_hashes_are_those_of_the_events():
    core = replace(SHAPE, num_kv_events=8).make_core()
    buffers = good_buffers()
    core.register_buffers(0, **buffers)
    scope = core.intern_scope(tenant="t", cache_scope="", adapter="", weights="")
    Ask(prompt=(1, 2, 3, 4), scope=scope, max_output=1).submit_to(core)
    buffers["tokens"][:], buffers["num_tokens"][:] = 9, 1
    core.commit(core.plan(0))

    events, lost = core.read_kv_events(0, 8)

    assert not lost
    hashes = core.path_hashes(scope, np.array([1, 2, 3, 4, 5], np.int32))
    assert [event[2] for event in events] == hashes.tolist()
    assert events[1][3] == events[0][2]
    assert core.kv_snapshot()[0] == events[-1][0]


def test_stats_are_fields_of_the_engines_counters():
    stats = SHAPE.make_core().stats()

    assert set(stats) <= set(CoreStats.__struct_fields__)
    assert stats["num_blocks"] == stats["num_blocks_free"] == SHAPE.num_blocks - 1


def test_dumped_state_holds_no_tokens():
    model = CoreModel(CoreShape())
    model.submit(Ask(prompt=(123456, 123457, 123458), scope=model.scope("one")))
    model.plan()

    state = model.core.dump_state()

    assert len(json.loads(state)["requests"]) == 1
    assert "12345" not in state


def test_caller_flags_come_back_in_every_row():
    core = SHAPE.make_core()
    buffers = good_buffers()
    core.register_buffers(0, **buffers)
    scope = core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
    none = np.zeros(0, np.int32)
    flags = _native.FLAG_LOGPROBS | _native.FLAG_MIN_TOKENS

    core.submit(
        np.array([1, 2], np.int32),
        scope=scope,
        max_output_tokens=1,
        end_ids=none,
        stop_ids=none,
        seed=2**64 - 1,
        flags=flags,
        adapter=3,
    )
    core.plan(0)

    assert int(buffers["flags"][0]) & ~0xFF == flags
    assert buffers["adapter"][0] == 3


def test_hold_and_release_say_whether_the_request_is_there():
    core = SHAPE.make_core()
    core.register_buffers(0, **good_buffers())
    scope = core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
    handle = Ask(prompt=(5, 6), scope=scope).submit_to(core)

    assert core.hold(handle)
    assert (core.stats()["num_held"], core.stats()["num_waiting"]) == (1, 0)
    assert core.plan(0) == 0
    assert core.release(handle)
    assert core.plan(0) == 1
    core.abort(handle)
    assert not core.hold(handle)
    assert not core.release(handle)


def test_times_of_a_request_are_told_until_its_place_has_another():
    core = replace(SHAPE, max_requests=1).make_core()
    core.register_buffers(0, **good_buffers())
    scope = core.intern_scope(tenant="", cache_scope="", adapter="", weights="")
    first = Ask(prompt=(5, 6), scope=scope).submit_to(core, arrival_ns=7)
    core.plan(0, 10)
    core.abort(first)
    counts, chunks, rests = core.times(first)

    core.commit(1, 20)
    second = Ask(prompt=(5, 6), scope=scope).submit_to(core, arrival_ns=30)

    assert (counts["arrival_ns"], counts["num_steps"]) == (7, 0)
    assert (chunks.shape, rests.shape) == ((0, 6), (0, 3))
    assert core.times(first) is None
    assert core.times(second)[0]["arrival_ns"] == 30
    assert core.times(0) is None
