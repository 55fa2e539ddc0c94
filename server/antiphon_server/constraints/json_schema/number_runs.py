"""Numbers as automata over their characters, so that remainders can be kept."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from antiphon_server.constraints.json_schema.shapes import NumberShape
from antiphon_server.constraints.languages.derivatives import derivative
from antiphon_server.constraints.languages.terms import NOTHING, Term
from antiphon_server.constraints.refusals import ConstraintTooComplexError

_SIGNS: Final = "-+.eE0123456789"
_MAX_STATES: Final = 2500


@dataclass(frozen=True, slots=True)
class NumberState:
    """What has been written of a number: what may follow, and the remainders so far."""

    texts: Term
    remainders: tuple[int, ...]
    num_decimals: int | None
    """Digits behind the point; None: there is no point yet."""


@dataclass(frozen=True, slots=True)
class NumberRun:
    """An automaton without dead ends.

    Attributes:
        start: The state in which nothing is written.
        edges: By state, the signs that may follow and where they lead.
        ends: The states in which the number may end.
    """

    start: NumberState
    edges: dict[NumberState, list[tuple[str, NumberState]]]
    ends: frozenset[NumberState]


@lru_cache(maxsize=16)
def number_run(shape: NumberShape) -> NumberRun | None:
    """Returns the automaton of a shape; None: there is no such number.

    Raises:
        ConstraintTooComplexError: it has too many states.
    """
    start = NumberState(shape.texts, (0,) * len(shape.steps), None)
    edges: dict[NumberState, list[tuple[str, NumberState]]] = {}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        if state in edges:
            continue
        edges[state] = [
            (sign, after) for sign in _SIGNS if (after := _after(shape, state, sign)) is not None
        ]
        waiting.extend(after for _, after in edges[state])
        if len(edges) > _MAX_STATES:
            raise ConstraintTooComplexError(
                f"multipleOf takes more than {_MAX_STATES} states beside the range that it is "
                "in; use a smaller step or a narrower range",
                limit=str(_MAX_STATES),
            )
    ends = frozenset(state for state in edges if _may_end(shape, state))
    live = _leading_to(ends, edges)
    if start not in live:
        return None
    kept = {
        state: [(sign, after) for sign, after in found if after in live]
        for state, found in edges.items()
        if state in live
    }
    return NumberRun(start, kept, ends)


def _leading_to(
    ends: frozenset[NumberState], edges: dict[NumberState, list[tuple[str, NumberState]]]
) -> set[NumberState]:
    before: dict[NumberState, list[NumberState]] = {}
    for state, found in edges.items():
        for _, after in found:
            before.setdefault(after, []).append(state)
    live = set(ends)
    reached = list(ends)
    while reached:
        for state in before.get(reached.pop(), []):
            if state not in live:
                live.add(state)
                reached.append(state)
    return live


def _after(shape: NumberShape, state: NumberState, sign: str) -> NumberState | None:
    texts = derivative(state.texts, ord(sign))
    if texts == NOTHING:
        return None
    if not shape.steps or sign in "-+eE":
        return NumberState(texts, state.remainders, state.num_decimals)
    if sign == ".":
        return NumberState(texts, state.remainders, 0)
    remainders = tuple(
        (remainder * 10 + int(sign)) % step.modulus
        for remainder, step in zip(state.remainders, shape.steps, strict=True)
    )
    num_decimals = None if state.num_decimals is None else state.num_decimals + 1
    return NumberState(texts, remainders, num_decimals)


def _may_end(shape: NumberShape, state: NumberState) -> bool:
    if not state.texts.nullable:
        return False
    return all(
        (remainder * 10 ** (step.num_digits - (state.num_decimals or 0)) % step.modulus == 0)
        == step.holds
        for remainder, step in zip(state.remainders, shape.steps, strict=True)
    )
