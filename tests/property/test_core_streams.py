"""What a request says must not depend on how the core came to compute it."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.core_driver import CoreDriver
from support.core_model import CoreModel
from support.core_values import Ask, CoreShape, History, seeded_uniform

VOCABULARY = 5
ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=48,
    max_requests=16,
    partial_reuse=False,
    prefix_deferral=False,
    bypass_requests=0,
)


def fake_model(history: History, uniform: float) -> int:
    """The next token is a function of the history and of the draw, as with a real model."""
    return hash((history.chains[-1], int(uniform * 1000))) % VOCABULARY


def ones(_history: History, _uniform: float) -> int:
    return 1


def streams(shape: CoreShape, asks: Sequence[Ask], *, gap: int = 1) -> list[tuple[list[int], int]]:
    """Submits the requests `gap` steps apart and returns the output and finish reason of each."""
    model = CoreModel(shape)
    scope = model.scope("one")
    handles = []
    for ask in asks:
        handles.append(model.submit(replace(ask, scope=scope)))
        for _ in range(gap):
            if model.requests:
                model.step(fake_model)
                model.check()
    model.run(fake_model)
    model.check()
    return [(model.ended[handle].outputs, model.ended[handle].finish) for handle in handles]


@st.composite
def asks(draw: st.DrawFn) -> list[Ask]:
    stem = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=24))
    tails = draw(
        st.lists(
            st.tuples(st.integers(0, len(stem)), st.lists(st.integers(0, 4), max_size=10)),
            min_size=1,
            max_size=6,
        )
    )
    return [
        Ask(
            prompt=(*stem[:kept], *tail) or (0,),
            scope=0,
            max_output=draw(st.integers(1, 12)),
            end_ids=frozenset([4]),
            seed=draw(st.integers(0, 2**64 - 1)),
            output_index=index,
        )
        for index, (kept, tail) in enumerate(tails)
    ]


def variants() -> list[CoreShape]:
    """Every mix of chunk size, budget, rows, pool and reuse that could matter."""
    return [
        CoreShape(
            num_blocks=num_blocks,
            block_tokens=4,
            max_rows=max_rows,
            max_step_tokens=max_step_tokens,
            max_context_tokens=48,
            max_requests=16,
            chunk_tokens=chunk_tokens,
            prefix_reuse=reuse,
            partial_reuse=False,
            prefix_deferral=False,
            bypass_requests=0,
        )
        for num_blocks, max_rows, max_step_tokens, chunk_tokens, reuse in itertools.product(
            [13, 65], [1, 4], [5, 64], [0, 4], [True, False]
        )
    ]


@pytest.mark.parametrize("shape", variants())
@settings(max_examples=4, deadline=None, derandomize=True)
@given(asks=asks(), gap=st.integers(0, 3))
def test_stream_does_not_depend_on_chunks_budget_reuse_or_batch(shape, asks, gap):
    together = streams(shape, asks, gap=gap)

    alone = [streams(ROOMY, [ask])[0] for ask in asks]

    assert together == alone


def test_uniform_depends_on_seed_output_and_position_alone():
    shape = ROOMY
    ask = Ask(prompt=(1, 2, 3), scope=0, max_output=8, seed=7, output_index=2)
    mates = [Ask(prompt=(1,) * n, scope=0, max_output=5, seed=n) for n in (3, 9, 20)]
    draws = []
    for requests in ([ask], [*mates, ask], [ask, *mates]):
        model = CoreModel(shape)
        scope = model.scope("one")
        handles = [model.submit(replace(r, scope=scope)) for r in requests]
        model.run(ones)
        draws.append(model.ended[handles[requests.index(ask)]].uniforms)

    assert draws[0] == draws[1] == draws[2]
    assert len(set(draws[0])) == 8


def test_uniform_of_a_seed_never_changes():
    # These numbers are a promise to users who wrote down a seed.
    model = CoreModel(ROOMY)
    ask = Ask(prompt=(1,), scope=model.scope("one"), max_output=3, seed=42, output_index=1)

    handle = model.submit(ask)
    model.run(ones)

    expected = [seeded_uniform(42, 1, position) for position in range(3)]
    assert model.ended[handle].uniforms == expected


def test_uniforms_are_spread_evenly():
    model = CoreDriver(CoreShape(num_blocks=600, max_context_tokens=1100, max_step_tokens=64))
    ask = Ask(prompt=(1,), scope=model.scope("one"), max_output=1000, seed=3)
    handle = model.submit(ask)

    model.run(ones)

    draws = model.ended[handle].uniforms
    assert all(0 <= draw < 1 for draw in draws)
    tenths = [sum(1 for draw in draws if int(draw * 10) == tenth) for tenth in range(10)]
    assert min(tenths) > 60
    assert max(tenths) < 140


def test_hits_that_no_request_holds_cost_as_much_as_new_blocks():
    shape = replace(ROOMY, num_blocks=5, block_tokens=2, max_context_tokens=8)
    model = CoreModel(shape)
    scope = model.scope("one")
    cached = Ask(prompt=(1, 2, 3, 4, 5), scope=scope, max_output=1)
    model.submit(cached)
    model.run(fake_model)
    model.submit(Ask(prompt=(6,), scope=scope, max_output=4))
    model.submit(cached)

    model.plan()
    model.check()

    assert model.core.stats()["num_running"] == 1
    model.drain(fake_model)
    model.run(fake_model)
    assert model.core.stats()["num_generated_tokens_total"] == 6


def test_follower_of_a_request_that_generates_starts_at_once():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    ask = Ask(prompt=tuple(range(9)), scope=scope, max_output=9)
    leader = model.submit(ask)
    model.step(ones)

    follower = model.submit(replace(ask, leader=leader))
    model.plan()

    assert model.requests[follower].reused == 8


def test_equal_concurrent_prompts_share_their_blocks_once_computed():
    model = CoreModel(ROOMY)
    ask = Ask(prompt=tuple(range(8)), scope=model.scope("one"), max_output=6)
    model.submit(ask)
    model.submit(ask)

    model.plan()
    assert model.core.stats()["num_blocks_used"] == 4
    model.drain(ones)

    assert model.core.stats()["num_blocks_used"] == 2
    model.run(ones)
    model.check()


def test_next_turn_reuses_what_the_last_one_generated():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    first = model.submit(Ask(prompt=(1, 2, 3, 4, 5), scope=scope, max_output=8))
    model.run(fake_model)
    context = model.ended[first].tokens

    second = model.submit(Ask(prompt=(*context, 1, 2), scope=scope))
    model.run(fake_model)

    assert model.ended[second].reused == (len(context) - 1) // 4 * 4


def test_next_turns_of_equal_concurrent_sessions_reuse_all_of_their_own():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    asks = [Ask(prompt=(1, 2, 3, 4, 5), scope=scope, max_output=9, seed=seed) for seed in range(3)]
    first = [model.submit(ask) for ask in asks]
    model.run(fake_model)
    contexts = [model.ended[handle].tokens for handle in first]

    second = [model.submit(Ask(prompt=(*context, 1), scope=scope)) for context in contexts]
    model.run(fake_model)

    reused = [model.ended[handle].reused for handle in second]
    assert reused == [(len(context) - 1) // 4 * 4 for context in contexts]


def test_prompt_of_whole_cached_blocks_still_computes_one_token():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    for _ in range(2):
        handle = model.submit(Ask(prompt=tuple(range(8)), scope=scope, max_output=1))
        model.run(fake_model)

    assert model.ended[handle].reused == 4


def test_request_of_one_output_token_runs_one_step():
    model = CoreModel(ROOMY)
    handle = model.submit(Ask(prompt=(1, 2, 3), scope=model.scope("one"), max_output=1))

    model.run(fake_model)

    assert model.ended[handle].num_rows == 1
    assert model.core.stats()["step"] == 1


def test_tokens_beyond_what_is_kept_are_forgotten():
    model = CoreModel(ROOMY)
    scope = model.scope("one")
    handle = model.submit(Ask(prompt=(1, 2, 3), scope=scope, max_output=20))
    for _ in range(12):
        model.step(ones)

    model.finish(handle, 6)

    assert model.core.stats()["num_blocks_cached"] == 2
    model.check()


def test_scopes_of_equal_words_in_other_fields_never_share():
    model = CoreModel(ROOMY)
    fields = ("tenant", "cache_scope", "adapter", "weights")
    scopes = [
        model.core.intern_scope(**{**dict.fromkeys(fields, ""), name: "x"}) for name in fields
    ]
    scopes.append(model.core.intern_scope(tenant="x", cache_scope="x", adapter="", weights=""))
    for scope in scopes:
        handle = model.submit(Ask(prompt=tuple(range(9)), scope=scope, max_output=2))
        model.run(fake_model)
        assert model.ended[handle].reused == 0

    assert len(set(scopes)) == len(scopes)
