"""Long random lives of a core: what the shortest failing histories of Hypothesis never reach."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from antiphon_engine import _native
from support.core_model import CoreModel
from support.core_shapes import any_shape
from support.core_values import ALL_TOKENS, Ask, CoreShape, History

_STEMS = ((0, 1, 0, 0, 1, 1) * 4, (0,) * 24, (1, 2, 0) * 8)
_SESSIONS = range(1, 5)


class CoreLife:
    """One core with a random mix of callers, each action followed by all checks."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._shape = any_shape(self._rng.choice)
        self._model = CoreModel(self._shape, seed=seed)
        self._num_withheld = 0
        self._actions = {
            self._submit: 6,
            self._submit_next_turn: 8,
            self._step: 24,
            self._plan: 12,
            self._execute: 8,
            self._commit: 8,
            self._abort: 2,
            self._finish: 2,
            self._hold: 2,
            self._release: 4,
            self._sit_out: 1,
            self._withhold: 3,
            self._rejoin: 6,
            self._move_session: 3,
            self._close_session: 2,
            self._jump_clock: 2,
            self._match: 2,
            self._read_events: 2,
            self._flush: 0.2,
        }

    @property
    def shape(self) -> CoreShape:
        return self._shape

    def live(
        self, num_actions: int, *, look: Callable[[CoreModel], None] = CoreModel.check
    ) -> Counter[str]:
        """Returns the core's counters at its end, when nothing may be left.

        Args:
            num_actions: How many actions, before all is brought to its end.
            look: Called after each.
        """
        model = self._model
        actions, weights = list(self._actions), list(self._actions.values())
        for action in self._rng.choices(actions, weights, k=num_actions):
            action()
            look(model)
        model.run(self._sample)
        model.check()
        for session in _SESSIONS:
            model.core.close_session(session)
        if self._shape.num_kv_events:
            model.events.catch_up()
        counters = Counter(model.stats())
        counters["rests"] = model.num_rests
        counters["withheld"] = self._num_withheld
        model.check_empty()
        return counters

    def _sample(self, _history: History, _uniform: float) -> int:
        return self._rng.randint(0, 2)

    def _submit(self) -> None:
        rng, model = self._rng, self._model
        pool_tokens = (self._shape.num_blocks - 1) * self._shape.block_tokens
        longest = min(self._shape.max_context_tokens - 1, pool_tokens)
        stem = rng.choice(_STEMS)[: rng.randint(1, longest)]
        tail = [rng.randint(0, 2) for _ in range(rng.choice((0, 0, 1, 3)))]
        ask = Ask(
            prompt=tuple([*stem, *tail][:longest]),
            scope=model.scope(rng.choice(("one", "one", "two"))),
            max_output=rng.randint(1, 10),
            end_ids=rng.choice((frozenset(), frozenset(), frozenset([2]))),
            stop_ids=rng.choice((frozenset(), frozenset(), frozenset([1, 2]))),
            seed=rng.randint(0, 99),
            priority=rng.choice((50, 50, 40, 60)),
            leader=rng.choice((0, 0, *model.requests, *list(model.ended)[-1:])),
            session=rng.choice((0, *_SESSIONS)),
            retention_priority=rng.choice((50, 50, 0, 80)),
            retention_us=rng.choice((0, 0, 1, 1000)),
            num_reusable=rng.choice((ALL_TOKENS, ALL_TOKENS, 0, 3, 7)),
        )
        for _ in range(rng.choice((1, 1, 2))):
            self._try_submit(ask)

    def _submit_next_turn(self) -> None:
        rng = self._rng
        if not self._model.ended:
            return
        request = self._model.ended[rng.choice(list(self._model.ended)[-6:])]
        kept = request.tokens[: len(request.tokens) - rng.choice((0, 0, 0, 1, 3))]
        added = [rng.randint(0, 2) for _ in range(rng.randint(1, 3))]
        prompt = (*kept, *added)
        self._try_submit(replace(request.ask, prompt=prompt, leader=0))

    def _try_submit(self, ask: Ask) -> None:
        try:
            self._model.submit(ask)
        except _native.NeverFitsError:
            assert ask.blocks_needed(self._shape) > self._shape.num_blocks - 1
        except _native.QueueFullError:
            draining = self._model.state().in_state("draining")
            assert len(self._model.requests) + len(draining) == self._shape.max_requests
        except ValueError:
            assert len(ask.prompt) >= self._shape.max_context_tokens

    def _step(self) -> None:
        for _ in range(self._rng.choice((1, 1, 2, 6))):
            if self._model.requests:
                self._model.step(self._sample)

    def _plan(self) -> None:
        if self._model.may_plan:
            self._model.plan()

    def _execute(self) -> None:
        self._model.execute(self._sample)

    def _commit(self) -> None:
        if self._model.in_flight:
            if not self._model.in_flight[0].executed:
                self._model.execute(self._sample)
            self._model.commit()

    def _abort(self) -> None:
        if self._model.requests:
            self._model.abort(self._any_handle())

    def _finish(self) -> None:
        if self._model.requests:
            self._model.finish(self._any_handle(), self._rng.randint(0, 4))

    def _hold(self) -> None:
        if self._model.requests:
            self._model.hold(self._any_handle())

    def _release(self) -> None:
        if self._model.held:
            self._model.release(self._rng.choice(self._model.held))

    def _sit_out(self) -> None:
        if self._model.requests:
            self._model.sit_out(self._any_handle())

    def _withhold(self) -> None:
        for handle in list(self._model.requests):
            if self._rng.random() < 0.5:
                self._num_withheld += self._model.withhold(handle)

    def _rejoin(self) -> None:
        if self._model.sitting_out:
            self._model.rejoin(self._rng.choice(self._model.sitting_out))

    def _any_handle(self) -> int:
        return self._rng.choice([*self._model.requests, *list(self._model.ended)[-2:]])

    def _move_session(self) -> None:
        core, session = self._model.core, self._rng.choice(_SESSIONS)
        if self._rng.random() < 0.5:
            core.rewind_session(session, self._rng.randint(0, 16))
            return
        other = self._rng.choice([number for number in _SESSIONS if number != session])
        if core.fork_session(session, other):
            assert core.rewind_session(other, 99), "I26: a fork has no tip"

    def _close_session(self) -> None:
        core, session = self._model.core, self._rng.choice(_SESSIONS)
        core.close_session(session)
        assert not core.close_session(session), "I5: a session is closed twice"

    def _jump_clock(self) -> None:
        self._model.now_us += self._rng.choice((1, 500, 10_000))

    def _match(self) -> None:
        tokens = list(self._rng.choice(_STEMS)[: self._rng.randint(0, 20)])
        self._model.check_match(self._model.scope("one"), tokens)

    def _read_events(self) -> None:
        if not self._shape.num_kv_events:
            return
        if self._rng.random() < 0.5:
            self._model.events.read(self._rng.randint(1, 8))
        else:
            self._model.events.catch_up()

    def _flush(self) -> None:
        num_cached = self._model.stats()["num_blocks_cached"]
        assert self._model.core.flush_prefix_cache() == num_cached
