"""A keyword's meaning, both ways: what a value that satisfies it has, and what one that doesn't."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from antiphon_server.constraints.json_schema.document import Json, json_key
from antiphon_server.constraints.json_schema.goals import (
    TYPES,
    Goal,
    OfTypes,
    Option,
    Part,
    Scopes,
    Workings,
    goal_of,
)
from antiphon_server.constraints.json_schema.schema_node import SchemaNode

Holds: TypeAlias = Callable[[SchemaNode, Workings, Scopes], tuple[Part, ...]]
Fails: TypeAlias = Callable[[SchemaNode, Workings], tuple[Option, ...]]


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword, or several that have a meaning only together.

    Attributes:
        names: The keywords; the meaning is asked for once where one or more of them are there.
        holds: Returns what a value has that satisfies them, all of it.
        fails: Returns the ways not to satisfy them.
    """

    names: tuple[str, ...]
    holds: Holds
    fails: Fails


def never(node: SchemaNode) -> Goal:
    """Returns the goal that no value satisfies."""
    return goal_of(node.made("never", value=False))


def equal_to(node: SchemaNode, value: Json) -> Goal:
    """Returns the goal of one value."""
    return goal_of(node.made(f"={json_key(value)}", {"const": value}))


def other_than(node: SchemaNode, value: Json) -> Goal:
    """Returns the goal of every value but one."""
    return goal_of(node.made(f"={json_key(value)}", {"const": value}), holds=False)


def of_type(*types: str) -> OfTypes:
    """Returns the fact that a value has one of some types."""
    return OfTypes(frozenset(types))


def of_no_type(*types: str) -> OfTypes:
    """Returns the fact that a value has none of some types."""
    return OfTypes(TYPES - set(types))
