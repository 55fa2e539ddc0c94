"""Whole conversations through a core, with the device at any pace that is legal."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon_engine import _native
from support.core_driver import CoreDriver
from support.core_values import Ask, History

VOCABULARY = 5
Outcome = tuple[list[int], int, list[float]]
"""Output, finish reason and draws of a request."""


def fake_model(history: History, uniform: float) -> int:
    """The next token is a function of the history and of the draw, as with a real model."""
    return hash((history.chains[-1], int(uniform * 1000))) % VOCABULARY


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns that follow each other; each prompt is all that was said, and a few tokens more."""

    ask: Ask
    """The first turn; `leader` is the place of another conversation, from 1."""
    turns: tuple[tuple[int, ...], ...] = ()
    """What each later turn adds."""
    after_steps: int = 0
    """When the first turn comes."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came out, and how often each feature was used."""

    outcomes: list[list[Outcome]]
    counters: Counter[str]


class ConversationRun:
    """Runs conversations side by side in one core."""

    def __init__(
        self,
        driver: CoreDriver,
        conversations: Sequence[Conversation],
        *,
        tenant: str = "one",
        with_holds: bool = False,
    ) -> None:
        """`with_holds`: now and then a request is held, and later released."""
        self._driver = driver
        self._with_holds = with_holds
        self._conversations = conversations
        self._scope = driver.scope(tenant)
        self._handles: list[list[int]] = [[] for _ in conversations]
        self._done = [False] * len(conversations)
        self._counters: Counter[str] = Counter()
        self._num_steps = 0

    def run(self, rng: random.Random, *, max_actions: int = 20_000) -> Report:
        """Plans, executes and commits in a random order, as far as that is legal."""
        driver = self._driver
        for _ in range(max_actions):
            self._submit_due()
            if self._with_holds:
                self._hold_or_release(rng)
            if all(self._done) and not driver.in_flight:
                return self._report()
            actions = [self._plan] if driver.may_plan and driver.requests else []
            if not driver.all_executed:
                actions.append(lambda: driver.execute(fake_model))
            if driver.in_flight and driver.in_flight[0].executed:
                actions.append(driver.commit)
            if actions:
                rng.choice(actions)()
            else:
                self._num_steps += 1  # nobody is there yet
        raise AssertionError(f"I17: no end is in sight: {driver.core.dump_state()}")

    def _hold_or_release(self, rng: random.Random) -> None:
        driver, choice = self._driver, rng.random()
        if choice < 0.1 and driver.requests:
            driver.hold(rng.choice(list(driver.requests)))
        elif choice < 0.3 and driver.held:
            driver.release(rng.choice(driver.held))

    def _plan(self) -> None:
        self._num_steps += 1
        waits = self._driver.core.stats()["num_waiting"]
        if not self._driver.plan():
            return
        step = self._driver.in_flight[-1]
        unfinished = [
            row for row in step.rows if row.flags & _native.FLAG_PREFILL and not row.samples
        ]
        num_tokens = int(step.buffers["header"][_native.HEADER_NUM_TOKENS])
        unknown = (step.buffers["input_ids"][:num_tokens] == -1).sum()
        self._counters["steps that someone waits through"] += waits > 0
        self._counters["prompts side by side"] += len(unfinished) > 1
        self._counters["chunks that are not the last"] += len(unfinished)
        self._counters["inputs that are still unknown"] += int(unknown)
        self._counters["late rows"] += sum(row.handle in self._driver.ended for row in step.rows)

    def _submit_due(self) -> None:
        for index, conversation in enumerate(self._conversations):
            handles = self._handles[index]
            if self._done[index] or (handles and handles[-1] not in self._driver.ended):
                continue
            if not handles:
                if self._num_steps >= conversation.after_steps and self._is_led(conversation):
                    self._submit(index, conversation.ask)
            elif len(handles) <= len(conversation.turns):
                earlier = self._driver.ended[handles[-1]]
                added = conversation.turns[len(handles) - 1]
                prompt = (*earlier.tokens, *added)
                if len(prompt) < self._driver.shape.max_context_tokens:
                    self._submit(index, replace(earlier.ask, prompt=prompt, leader=0))
                else:
                    self._done[index] = True
            else:
                self._done[index] = True

    def _is_led(self, conversation: Conversation) -> bool:
        leader = conversation.ask.leader
        return not leader or bool(self._handles[leader - 1])

    def _submit(self, index: int, ask: Ask) -> None:
        leader = self._handles[ask.leader - 1][0] if ask.leader else 0
        asked = replace(ask, scope=self._scope, leader=leader)
        self._handles[index].append(self._driver.submit(asked))

    def _report(self) -> Report:
        ended = self._driver.ended
        counters = self._counters + Counter(self._driver.core.stats())
        counters["rests"] = self._driver.num_rests
        outcomes = [
            [(ended[h].outputs, ended[h].finish, ended[h].uniforms) for h in handles]
            for handles in self._handles
        ]
        return Report(outcomes=outcomes, counters=counters)
