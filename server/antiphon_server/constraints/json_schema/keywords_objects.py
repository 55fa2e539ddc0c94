"""The keywords of objects."""

from typing import Final

from antiphon_server.constraints.json_schema.goals import (
    ANYTHING,
    NO_SCOPES,
    OBJECT,
    Absent,
    Claim,
    Goal,
    MemberCount,
    Members,
    NamesIn,
    OneOf,
    Option,
    Part,
    Present,
    Scopes,
    SomeMember,
    UnevaluatedMembers,
    Workings,
    goal_of,
)
from antiphon_server.constraints.json_schema.keyword import Keyword, of_type
from antiphon_server.constraints.json_schema.keywords_scalars import pattern_language
from antiphon_server.constraints.json_schema.schema_node import SchemaNode
from antiphon_server.constraints.languages.terms import Term, both, complement, literals

_OBJECT: Final = of_type(OBJECT)


def _named(node: SchemaNode, workings: Workings) -> dict[str, SchemaNode]:
    references = workings.references
    return {
        name: references.child(node, "properties", name) for name, _ in node.members("properties")
    }


def _patterns(node: SchemaNode, workings: Workings) -> list[tuple[Term, SchemaNode]]:
    return [
        (
            pattern_language(node, "patternProperties", pattern),
            workings.references.child(node, "patternProperties", pattern),
        )
        for pattern, _ in node.members("patternProperties")
    ]


def _members_hold(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    named = {name: goal_of(child) for name, child in _named(node, workings).items()}
    patterns = tuple((names, goal_of(child)) for names, child in _patterns(node, workings))
    others: Goal | None = None
    if node.has("additionalProperties"):
        others = goal_of(workings.references.child(node, "additionalProperties"))
    return (Members(named, patterns, others, scopes),)


def _members_fail(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    options: list[Option] = []
    named = _named(node, workings)
    patterns = _patterns(node, workings)
    for name, child in named.items():
        wrong = Members({name: goal_of(child, holds=False)}, (), None, NO_SCOPES)
        options.append((_OBJECT, Present((name,)), wrong))
    for names, child in patterns:
        wrong_goal = goal_of(child, holds=False)
        options.append((_OBJECT, SomeMember(names, wrong_goal, node.pointer)))
    if node.has("additionalProperties"):
        child = workings.references.child(node, "additionalProperties")
        others = both(complement(literals(named)), *(complement(names) for names, _ in patterns))
        wrong_goal = goal_of(child, holds=False)
        options.append((_OBJECT, SomeMember(others, wrong_goal, node.pointer)))
    return tuple(options)


def _required_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    return (Present(node.names("required")),)


def _required_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    return tuple((_OBJECT, Absent(name)) for name in node.names("required"))


def _count_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    low, high = node.count("minProperties") or 0, node.count("maxProperties")
    return (MemberCount(low, high, node.pointer),)


def _count_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    low, high = node.count("minProperties") or 0, node.count("maxProperties")
    options: list[Option] = []
    if low:
        options.append((_OBJECT, MemberCount(0, low - 1, node.pointer)))
    if high is not None:
        options.append((_OBJECT, MemberCount(high + 1, None, node.pointer)))
    return tuple(options)


def _names_hold(node: SchemaNode, workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    names = workings.texts(goal_of(workings.references.child(node, "propertyNames")))
    return (NamesIn(names),)


def _names_fail(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
    names = workings.texts(goal_of(workings.references.child(node, "propertyNames"), holds=False))
    return ((_OBJECT, SomeMember(names, ANYTHING, node.pointer)),)


def _dependencies(
    node: SchemaNode, workings: Workings, keyword: str
) -> list[tuple[str, tuple[str, ...] | SchemaNode]]:
    """What must hold where a member is there: other members, or a schema."""
    found: list[tuple[str, tuple[str, ...] | SchemaNode]] = []
    for name, value in node.members(keyword):
        if keyword == "dependentRequired" or (
            keyword == "dependencies" and isinstance(value, list)
        ):
            found.append((name, node.strings_of(keyword, value)))
        elif keyword == "dependencies" and isinstance(value, str):
            found.append((name, (value,)))
        else:
            found.append((name, workings.references.child(node, keyword, name)))
    return found


def _dependency_keyword(keyword: str) -> Keyword:
    def holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
        parts: list[Part] = []
        for name, needed in _dependencies(node, workings, keyword):
            consequence: Part = (
                Claim(needed, holds=True, scopes=scopes)
                if isinstance(needed, SchemaNode)
                else Present(needed)
            )
            # What is needed is told of first, so that it comes first.
            options: tuple[Option, ...] = ((Absent(name),), (consequence, Present((name,))))
            parts.append(OneOf(options, node.pointer))
        return tuple(parts)

    def fails(node: SchemaNode, workings: Workings) -> tuple[Option, ...]:
        options: list[Option] = []
        for name, needed in _dependencies(node, workings, keyword):
            if isinstance(needed, SchemaNode):
                options.append((_OBJECT, Present((name,)), Claim(needed, holds=False)))
            else:
                options.extend((_OBJECT, Present((name,)), Absent(other)) for other in needed)
        return tuple(options)

    return Keyword((keyword,), holds, fails)


def _unevaluated_holds(node: SchemaNode, workings: Workings, scopes: Scopes) -> tuple[Part, ...]:
    goal = goal_of(workings.references.child(node, "unevaluatedProperties"))
    return (UnevaluatedMembers(node.pointer, goal, scopes - {node.pointer}),)


def _unevaluated_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    node.refuse("unevaluatedProperties", "this can't be enforced within a negation")


OBJECT_KEYWORDS: Final = (
    Keyword(
        ("properties", "patternProperties", "additionalProperties"), _members_hold, _members_fail
    ),
    Keyword(("required",), _required_holds, _required_fails),
    Keyword(("minProperties", "maxProperties"), _count_holds, _count_fails),
    Keyword(("propertyNames",), _names_hold, _names_fail),
    _dependency_keyword("dependentRequired"),
    _dependency_keyword("dependentSchemas"),
    _dependency_keyword("dependencies"),
    Keyword(("unevaluatedProperties",), _unevaluated_holds, _unevaluated_fails),
)
