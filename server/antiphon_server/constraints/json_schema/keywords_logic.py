"""References, `allOf`, `anyOf`, `oneOf`, `not`, and `if` with `then` and `else`."""

from itertools import combinations
from typing import Final

from antiphon_server.constraints.json_schema.goals import (
    NO_SCOPES,
    Claim,
    OneOf,
    Option,
    Part,
    Scopes,
    Workings,
    goal_of,
)
from antiphon_server.constraints.json_schema.keyword import Keyword
from antiphon_server.constraints.json_schema.schema_node import SchemaNode

_MAX_SUBSETS_OF: Final = 6
"""Schemas of an `anyOf` whose combinations are told apart for an `unevaluated…` around them."""


def _reference(keyword: str) -> Keyword:
    def holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
        return (Claim(workings.references.target(node, keyword), holds=True, scopes=scopes),)

    def fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
        return ((Claim(workings.references.target(node, keyword), holds=False),),)

    return Keyword((keyword,), holds, fails)


def _all_hold(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    children = workings.references.children(node, "allOf")
    return tuple(Claim(child, holds=True, scopes=scopes) for child in children)


def _all_fail(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    children = workings.references.children(node, "allOf")
    return tuple((Claim(child, holds=False),) for child in children)


def _any_holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    children = workings.references.children(node, "anyOf")
    claims = [Claim(child, holds=True, scopes=scopes) for child in children]
    if not scopes:
        return (OneOf(tuple((claim,) for claim in claims), node.pointer),)
    if len(claims) > _MAX_SUBSETS_OF:
        node.refuse(
            "anyOf",
            f"more than {_MAX_SUBSETS_OF} schemas can't be enforced within an unevaluated… keyword",
        )
    sizes = range(len(claims), 0, -1)
    subsets = [subset for size in sizes for subset in combinations(claims, size)]
    return (OneOf(tuple(subsets), node.pointer),)


def _any_fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    children = workings.references.children(node, "anyOf")
    return (tuple(Claim(child, holds=False) for child in children),)


def _one_holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    children = workings.references.children(node, "oneOf")
    options = []
    for chosen in children:
        others = [child for child in children if child is not chosen]
        exclusions = [
            Claim(other, holds=False)
            for other in others
            if not workings.surely_disjoint(goal_of(chosen), goal_of(other))
        ]
        options.append((Claim(chosen, holds=True, scopes=scopes), *exclusions))
    return (OneOf(tuple(options), node.pointer),)


def _one_fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    children = workings.references.children(node, "oneOf")
    options: list[Option] = [tuple(Claim(child, holds=False) for child in children)]
    for one, other in combinations(children, 2):
        if not workings.surely_disjoint(goal_of(one), goal_of(other)):
            options.append((Claim(one, holds=True), Claim(other, holds=True)))
    return tuple(options)


def _not_holds(node: SchemaNode, workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    return (Claim(workings.references.child(node, "not"), holds=False),)


def _not_fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    return ((Claim(workings.references.child(node, "not"), holds=True),),)


def _if_holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    if not node.has("if") or not (node.has("then") or node.has("else") or scopes):
        return ()
    condition = workings.references.child(node, "if")
    options = []
    for holds, keyword in ((True, "then"), (False, "else")):
        claims = [Claim(condition, holds=holds, scopes=scopes if holds else NO_SCOPES)]
        if node.has(keyword):
            consequence = workings.references.child(node, keyword)
            claims.append(Claim(consequence, holds=True, scopes=scopes))
        options.append(tuple(claims))
    return (OneOf(tuple(options), node.pointer),)


def _if_fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    if not node.has("if"):
        return ()
    condition = workings.references.child(node, "if")
    options = []
    for holds, keyword in ((True, "then"), (False, "else")):
        if node.has(keyword):
            consequence = workings.references.child(node, keyword)
            options.append((Claim(condition, holds=holds), Claim(consequence, holds=False)))
    return tuple(options)


REFERENCE_KEYWORDS: Final = tuple(
    _reference(keyword) for keyword in ("$ref", "$dynamicRef", "$recursiveRef")
)
LOGIC_KEYWORDS: Final = (
    Keyword(("allOf",), _all_hold, _all_fail),
    Keyword(("anyOf",), _any_holds, _any_fails),
    Keyword(("oneOf",), _one_holds, _one_fails),
    Keyword(("not",), _not_holds, _not_fails),
    Keyword(("if", "then", "else"), _if_holds, _if_fails),
)
