"""The keywords of arrays."""

from typing import Final

from antiphon_server.constraints.json_schema.goals import (
    ANYTHING,
    ARRAY,
    NO_SCOPES,
    Containing,
    Distinct,
    Goal,
    ItemCount,
    Items,
    Option,
    Part,
    Scopes,
    UnevaluatedItems,
    Workings,
    goal_of,
)
from antiphon_server.constraints.json_schema.keyword import Keyword, of_type
from antiphon_server.constraints.json_schema.schema_node import SchemaNode

_ARRAY: Final = of_type(ARRAY)


def _layout(
    node: SchemaNode, workings: Workings
) -> tuple[tuple[SchemaNode, ...], SchemaNode | None]:
    """The schemas of the first items, and the one of those behind them."""
    references = workings.references
    listed = node.get("items")
    if isinstance(listed, list) and not node.has("prefixItems"):
        if not node.dialect.has_tuple_items:
            node.refuse("items", "this must be a schema; use prefixItems for a list")
        first = tuple(references.child(node, "items", index) for index in range(len(listed)))
        return first, _child(node, workings, "additionalItems")
    first = references.children(node, "prefixItems") if node.has("prefixItems") else ()
    return first, _child(node, workings, "items")


def _child(node: SchemaNode, workings: Workings, keyword: str) -> SchemaNode | None:
    return workings.references.child(node, keyword) if node.has(keyword) else None


def _items_hold(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    first, rest = _layout(node, workings)
    rest_goal = None if rest is None else goal_of(rest)
    return (Items(tuple(goal_of(child) for child in first), rest_goal, scopes),)


def _items_fail(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    first, rest = _layout(node, workings)
    options: list[Option] = []
    for index, child in enumerate(first):
        goals: tuple[Goal, ...] = (ANYTHING,) * index + (goal_of(child, holds=False),)
        options.append((_ARRAY, Items(goals, None, NO_SCOPES), ItemCount(index + 1, None)))
    if rest is not None:
        wrong = goal_of(rest, holds=False)
        path = f"{node.pointer}/items"
        options.append((_ARRAY, Containing(wrong, 1, None, path, start=len(first))))
    return tuple(options)


def _count_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    return (ItemCount(node.count("minItems") or 0, node.count("maxItems")),)


def _count_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    low, high = node.count("minItems") or 0, node.count("maxItems")
    options: list[Option] = []
    if low:
        options.append((_ARRAY, ItemCount(0, low - 1)))
    if high is not None:
        options.append((_ARRAY, ItemCount(high + 1, None)))
    return tuple(options)


def _contains(node: SchemaNode, workings: Workings) -> tuple[Goal, int, int | None, str]:
    low = node.count("minContains")
    goal = goal_of(workings.references.child(node, "contains"))
    path = f"{node.pointer}/contains"
    return goal, 1 if low is None else low, node.count("maxContains"), path


def _contains_holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    if not node.has("contains"):
        return ()
    return (Containing(*_contains(node, workings), scopes=scopes),)


def _contains_fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    if not node.has("contains"):
        return ()
    goal, low, high, path = _contains(node, workings)
    options: list[Option] = []
    if low:
        options.append((_ARRAY, Containing(goal, 0, low - 1, path)))
    if high is not None:
        options.append((_ARRAY, Containing(goal, high + 1, None, path)))
    return tuple(options)


def _unique_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    value = node.get("uniqueItems")
    if not isinstance(value, bool):
        node.refuse("uniqueItems", "this must be true or false")
    return (Distinct(f"{node.pointer}/uniqueItems"),) if value else ()


def _unique_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    if node.get("uniqueItems") is True:
        node.refuse("uniqueItems", "this can't be enforced within a negation")
    return ()


def _unevaluated_holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    goal = goal_of(workings.references.child(node, "unevaluatedItems"))
    path = f"{node.pointer}/unevaluatedItems"
    return (UnevaluatedItems(node.pointer, goal, scopes - {node.pointer}, path),)


def _unevaluated_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    node.refuse("unevaluatedItems", "this can't be enforced within a negation")


ARRAY_KEYWORDS: Final = (
    Keyword(("items", "prefixItems", "additionalItems"), _items_hold, _items_fail),
    Keyword(("minItems", "maxItems"), _count_holds, _count_fails),
    Keyword(("contains", "minContains", "maxContains"), _contains_holds, _contains_fails),
    Keyword(("uniqueItems",), _unique_holds, _unique_fails),
    Keyword(("unevaluatedItems",), _unevaluated_holds, _unevaluated_fails),
)
