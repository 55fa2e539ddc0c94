"""Objects from the facts about them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from antiphon_server.constraints.json_schema.goals import (
    ANYTHING,
    Absent,
    Fact,
    Goal,
    MemberCount,
    Members,
    NamesIn,
    Present,
    SomeMember,
    UnevaluatedMembers,
    is_refuted,
)
from antiphon_server.constraints.json_schema.limits import Budget
from antiphon_server.constraints.json_schema.scalar_shapes import narrowed
from antiphon_server.constraints.json_schema.shapes import Member, ObjectShape, OtherMembers
from antiphon_server.constraints.languages.derivatives import finite_texts, matches
from antiphon_server.constraints.languages.terms import (
    NOTHING,
    Term,
    both,
    choice,
    complement,
    literals,
)
from antiphon_server.constraints.refusals import UnsupportedConstraintError

_MAX_PATTERNS: Final = 8
_MAX_LISTED_NAMES: Final = 32


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts about an object, by their kinds."""

    members: tuple[Members, ...]
    unevaluated: tuple[UnevaluatedMembers, ...]
    present: dict[str, None]
    absent: frozenset[str]
    names: Term
    some: tuple[SomeMember, ...]
    counts: tuple[MemberCount, ...]


def object_shapes(facts: Iterable[Fact], budget: Budget, path: str) -> Iterator[ObjectShape]:
    """Yields the ways an object may look that fits the facts; together they are all of them.

    Raises:
        UnsupportedConstraintError: they can't be told apart from others.
    """
    sorted_facts = _sorted(facts)
    patterns = _patterns(sorted_facts)
    if len(patterns) > _MAX_PATTERNS:
        raise UnsupportedConstraintError(
            path, f"more than {_MAX_PATTERNS} patterns for one object's names can't be enforced"
        )
    others = _others(sorted_facts, patterns)
    names = _known_names(sorted_facts)
    for group in list(others):
        listed = finite_texts(group.names, _MAX_LISTED_NAMES)
        if listed is not None:
            others.remove(group)
            names.update(dict.fromkeys(sorted(listed)))
    members = {name: _goal_of(name, sorted_facts, patterns) for name in names}
    yield from _with_some(sorted_facts, members, tuple(others), budget)


def _sorted(facts: Iterable[Fact]) -> _Facts:
    known = list(facts)
    present: dict[str, None] = {}
    for fact in known:
        if isinstance(fact, Present):
            present.update(dict.fromkeys(fact.names))
    return _Facts(
        members=tuple(fact for fact in known if isinstance(fact, Members)),
        unevaluated=tuple(fact for fact in known if isinstance(fact, UnevaluatedMembers)),
        present=present,
        absent=frozenset(fact.name for fact in known if isinstance(fact, Absent)),
        names=both(*(fact.language for fact in known if isinstance(fact, NamesIn))),
        some=tuple(dict.fromkeys(fact for fact in known if isinstance(fact, SomeMember))),
        counts=tuple(fact for fact in known if isinstance(fact, MemberCount)),
    )


def _known_names(facts: _Facts) -> dict[str, None]:
    """The names that something is said about, in the order of the text."""
    names: dict[str, None] = {}
    for members in facts.members:
        names.update(dict.fromkeys(members.named))
    names.update(facts.present)
    names.update(dict.fromkeys(sorted(facts.absent)))
    return names


def _patterns(facts: _Facts) -> list[Term]:
    return list(dict.fromkeys(names for each in facts.members for names, _ in each.patterns))


def _others(facts: _Facts, patterns: list[Term]) -> list[OtherMembers]:
    """The members with other names than the known ones, by which patterns they match."""
    by_goal: dict[Goal, list[Term]] = {}
    unknown = complement(literals(_known_names(facts)))
    for matching in product((False, True), repeat=len(patterns)):
        chosen = {pattern for pattern, does in zip(patterns, matching, strict=True) if does}
        goal = _goal_by(facts, None, chosen)
        if is_refuted(goal):
            continue
        sides = (each if each in chosen else complement(each) for each in patterns)
        names = narrowed(both(unknown, facts.names, *sides))
        if names != NOTHING:
            by_goal.setdefault(goal, []).append(names)
    return [OtherMembers(choice(*names), goal) for goal, names in by_goal.items()]


def _goal_of(name: str, facts: _Facts, patterns: list[Term]) -> Goal | None:
    """What the member of a name satisfies; None: there can't be one."""
    if name in facts.absent or not matches(facts.names, name):
        return None
    chosen = {pattern for pattern in patterns if matches(pattern, name)}
    goal = _goal_by(facts, name, chosen)
    return None if is_refuted(goal) else goal


def _goal_by(facts: _Facts, name: str | None, chosen: set[Term]) -> Goal:
    """What a member satisfies that has a name and matches some of the patterns."""
    goal: Goal = ANYTHING
    evaluated: set[str] = set()
    for members in facts.members:
        found = [each for names, each in members.patterns if names in chosen]
        if name is not None and name in members.named:
            found.append(members.named[name])
        if not found and members.others is not None:
            found.append(members.others)
        if found:
            evaluated |= members.scopes
        goal = goal.union(*found)
    # An inner scope is done before the one around it, which counts what the inner looked at.
    for unevaluated in sorted(facts.unevaluated, key=lambda each: -len(each.scopes)):
        if unevaluated.scope not in evaluated:
            goal |= unevaluated.goal
            evaluated |= unevaluated.scopes
    return goal


def _with_some(
    facts: _Facts,
    members: dict[str, Goal | None],
    others: tuple[OtherMembers, ...],
    budget: Budget,
) -> Iterator[ObjectShape]:
    """Chooses which member is the one that has to be there, one way after the other."""
    pending: list[tuple[dict[str, Goal | None], frozenset[str], OtherMembers | None, int]] = [
        (members, frozenset(facts.present), None, 0)
    ]
    while pending:
        chosen, present, last, index = pending.pop()
        if index == len(facts.some):
            shape = _shape(facts, (chosen, present), others, last)
            if shape is not None:
                yield shape
            continue
        some = facts.some[index]
        budget.spend(some.path, len(chosen))
        for name, goal in chosen.items():
            if goal is not None and matches(some.names, name):
                narrower = {**chosen, name: goal | some.goal}
                pending.append((narrower, present | {name}, last, index + 1))
        for group in others:
            names = narrowed(both(group.names, some.names))
            if names == NOTHING or is_refuted(group.goal | some.goal):
                continue
            if last is not None:
                raise UnsupportedConstraintError(
                    some.path,
                    "that an object has several members of unknown names can't be enforced",
                )
            pending.append(
                (chosen, present, OtherMembers(names, group.goal | some.goal), index + 1)
            )


def _shape(
    facts: _Facts,
    known: tuple[dict[str, Goal | None], frozenset[str]],
    others: tuple[OtherMembers, ...],
    last: OtherMembers | None,
) -> ObjectShape | None:
    goals, present = known
    if any(goals[name] is None or is_refuted(goals[name] or ANYTHING) for name in present):
        return None
    members = tuple(
        Member(name, goal, name in present) for name, goal in goals.items() if goal is not None
    )
    num_present = len(present) + (last is not None)
    low = max((fact.low for fact in facts.counts), default=0)
    highs = [fact.high for fact in facts.counts if fact.high is not None]
    high = min(highs) if highs else None
    if high is not None and high < max(low, num_present):
        return None
    if high is not None and not others and len(members) <= high:
        high = None
    has_others = bool(others)
    if not has_others and low > len(members):
        return None
    if low <= num_present:
        low = 0
    if has_others and low > num_present + (last is None):
        path = next(fact.path for fact in facts.counts if fact.low)
        raise UnsupportedConstraintError(
            f"{path}/minProperties",
            f"{low} members can't be told apart from one name used several times, where names "
            f"aren't known; list them in properties, or ask for no more than {num_present + 1}",
        )
    return ObjectShape(members, others, last, low, high)
