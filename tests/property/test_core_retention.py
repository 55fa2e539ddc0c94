"""What stays cached, and what goes first: retention, age, sessions."""

from dataclasses import replace

import numpy as np

from support.core_model import CoreModel
from support.core_values import Ask, CoreShape, History

ROOMY = CoreShape(
    num_blocks=65,
    block_tokens=4,
    max_rows=4,
    max_step_tokens=16,
    max_context_tokens=64,
    max_requests=16,
)


def ones(_history: History, _uniform: float) -> int:
    return 1


def prompt(length: int, first: int) -> tuple[int, ...]:
    return (first, *range(100, 99 + length))


def test_blocks_of_higher_retention_outlive_others():
    model = CoreModel(replace(ROOMY, num_blocks=17))
    scope = model.scope("one")
    asks = [
        Ask(prompt=prompt(17, n), scope=scope, max_output=1, retention_priority=priority)
        for n, priority in enumerate([80, 20, 50])
    ]
    for ask in asks:
        model.submit(ask)
        model.run(ones)

    model.submit(Ask(prompt=prompt(21, 9), scope=scope, max_output=1))
    model.run(ones)

    assert [kept_tokens(model, scope, ask.prompt) for ask in asks] == [16, 0, 16]


def test_of_equal_retention_the_one_used_longest_ago_is_evicted():
    model = CoreModel(replace(ROOMY, num_blocks=17))
    scope = model.scope("one")
    asks = [Ask(prompt=prompt(17, n), scope=scope, max_output=1) for n in range(3)]
    for ask in [*asks, asks[0]]:
        model.submit(ask)
        model.run(ones)

    model.submit(Ask(prompt=prompt(17, 9), scope=scope, max_output=1))
    model.run(ones)

    kept = [kept_tokens(model, scope, ask.prompt) for ask in asks]
    assert kept[0] == kept[2] == 16
    assert kept[1] < 16


def test_retention_falls_to_nothing_when_its_time_is_over():
    model = CoreModel(replace(ROOMY, num_blocks=13))
    scope = model.scope("one")
    brief = Ask(
        prompt=prompt(17, 1), scope=scope, max_output=1, retention_priority=90, retention_us=1000
    )
    lasting = Ask(prompt=prompt(17, 2), scope=scope, max_output=1, retention_priority=10)
    for ask in (brief, lasting):
        model.submit(ask)
        model.run(ones)
    model.now_us += 2000

    model.submit(Ask(prompt=prompt(29, 3), scope=scope, max_output=1))
    model.run(ones)

    assert kept_tokens(model, scope, brief.prompt) < 16
    assert kept_tokens(model, scope, lasting.prompt) == 16


def test_what_a_session_was_rewound_behind_is_evicted_first():
    model = CoreModel(replace(ROOMY, num_blocks=17))
    scope = model.scope("one")
    older = Ask(prompt=prompt(17, 1), scope=scope, max_output=1)
    model.submit(older)
    model.run(ones)
    rewound = Ask(prompt=prompt(33, 2), scope=scope, max_output=1, session=7)
    model.submit(rewound)
    model.run(ones)

    assert model.core.rewind_session(7, 16)
    model.submit(Ask(prompt=prompt(25, 3), scope=scope, max_output=1))
    model.run(ones)

    assert kept_tokens(model, scope, older.prompt) == 16
    assert kept_tokens(model, scope, rewound.prompt) == 16


def test_branch_of_a_fork_keeps_the_path_that_another_session_left():
    model = CoreModel(replace(ROOMY, num_blocks=17))
    scope = model.scope("one")
    kept = Ask(prompt=prompt(17, 1), scope=scope, max_output=1, session=1)
    model.submit(kept)
    model.run(ones)
    assert model.core.fork_session(1, 2)

    model.core.close_session(1)
    model.submit(Ask(prompt=prompt(17, 2), scope=scope, max_output=1, session=3))
    model.run(ones)
    model.core.close_session(3)
    model.submit(Ask(prompt=prompt(41, 4), scope=scope, max_output=1))
    model.run(ones)

    assert kept_tokens(model, scope, kept.prompt) == 16
    assert model.core.close_session(2)


def test_sessions_beyond_the_limit_forget_the_one_used_longest_ago():
    model = CoreModel(replace(ROOMY, max_sessions=2))
    scope = model.scope("one")
    for session in (1, 2, 3):
        model.submit(Ask(prompt=prompt(9, session), scope=scope, session=session))
        model.run(ones)

    assert [model.core.close_session(session) for session in (1, 2, 3)] == [False, True, True]


def kept_tokens(model: CoreModel, scope: int, tokens: tuple[int, ...]) -> int:
    """Leading tokens with KV in either tier."""
    return model.core.match_prefix(scope, np.array(tokens, np.int32))
