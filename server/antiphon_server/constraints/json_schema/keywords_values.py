"""`type`, `enum` and `const`."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from antiphon_server.constraints.json_schema.document import Json, json_key
from antiphon_server.constraints.json_schema.goals import (
    ANYTHING,
    ARRAY,
    BOOLEAN,
    NO_SCOPES,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TYPES,
    Absent,
    ItemCount,
    Items,
    Members,
    NumberAmong,
    OfTypes,
    OneOf,
    Option,
    Part,
    Present,
    Scopes,
    SomeMember,
    TextIn,
    Truths,
    Whole,
    Workings,
)
from antiphon_server.constraints.json_schema.keyword import (
    Keyword,
    equal_to,
    never,
    of_no_type,
    of_type,
    other_than,
)
from antiphon_server.constraints.json_schema.schema_node import SchemaNode
from antiphon_server.constraints.languages.terms import complement, literals

_INTEGER: Final = "integer"


def _types(node: SchemaNode) -> frozenset[str]:
    value = node.get("type")
    names = (value,) if isinstance(value, str) else node.names("type")
    if not names:
        node.refuse("type", "this must name a type")
    for name in names:
        if name not in TYPES and name != _INTEGER:
            node.refuse("type", f"{name!r} isn't a type")
    return frozenset(names)


def _type_holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
    types = _types(node)
    if _INTEGER not in types:
        return (OfTypes(types),)
    known = OfTypes((types - {_INTEGER}) | {NUMBER})
    return (known,) if NUMBER in types else (known, Whole(is_whole=True))


def _type_fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
    types = _types(node)
    others: Option = (OfTypes(TYPES - types - ({NUMBER} if _INTEGER in types else set())),)
    if _INTEGER not in types or NUMBER in types:
        return (others,)
    return others, (of_type(NUMBER), Whole(is_whole=False))


def _values(node: SchemaNode, keyword: str) -> Sequence[Json]:
    value = node.get(keyword)
    if keyword == "const":
        return (value,)
    if not isinstance(value, list):
        node.refuse(keyword, "this must be a list of values")
    return value


class _Scalars:
    """The values of a list that aren't objects or arrays, by their types."""

    def __init__(self, values: Sequence[Json], path: str) -> None:
        self.path = path
        self.has_null = any(value is None for value in values)
        self.truths = frozenset(value for value in values if isinstance(value, bool))
        self.texts = [value for value in values if isinstance(value, str)]
        self.numbers = frozenset(
            Decimal(value)
            for value in values
            if isinstance(value, int | Decimal) and not isinstance(value, bool)
        )

    def holds(self) -> Option:
        """Returns what is so for one of them."""
        types = (
            ({NULL} if self.has_null else set())
            | ({BOOLEAN} if self.truths else set())
            | ({STRING} if self.texts else set())
            | ({NUMBER} if self.numbers else set())
        )
        parts: list[Part] = [OfTypes(frozenset(types))]
        if self.truths:
            parts.append(Truths(self.truths))
        if self.texts:
            parts.append(TextIn(literals(self.texts), self.path))
        if self.numbers:
            parts.append(NumberAmong(self.numbers, holds=True))
        return tuple(parts)

    def fails(self) -> Option:
        """Returns what is so for none of them."""
        parts: list[Part] = [of_no_type(NULL)] if self.has_null else []
        if self.truths:
            parts.append(Truths(frozenset({True, False}) - self.truths))
        if self.texts:
            parts.append(TextIn(complement(literals(self.texts)), self.path))
        if self.numbers:
            parts.append(NumberAmong(self.numbers, holds=False))
        return tuple(parts)


def _composites(values: Sequence[Json]) -> list[list[Json] | dict[str, Json]]:
    unique = {json_key(value): value for value in values if isinstance(value, list | dict)}
    return [value for value in unique.values() if isinstance(value, list | dict)]


def _of_values(keyword: str) -> Keyword:
    def holds(node: SchemaNode, _workings: Workings, _scopes: Scopes) -> tuple[Part, ...]:
        values = _values(node, keyword)
        composites = _composites(values)
        scalars = _Scalars(values, f"{node.pointer}/{keyword}").holds()
        if not composites:
            return scalars
        options = [_equals(node, value) for value in composites]
        return (OneOf((*options, scalars), node.pointer),)

    def fails(node: SchemaNode, _workings: Workings) -> tuple[Option, ...]:
        values = _values(node, keyword)
        differences = tuple(
            OneOf(_differs(node, value), node.pointer) for value in _composites(values)
        )
        return ((*_Scalars(values, f"{node.pointer}/{keyword}").fails(), *differences),)

    return Keyword((keyword,), holds, fails)


def _equals(node: SchemaNode, value: list[Json] | dict[str, Json]) -> Option:
    if isinstance(value, dict):
        named = {name: equal_to(node, item) for name, item in value.items()}
        members = Members(named, (), never(node), NO_SCOPES)
        return (of_type(OBJECT), members, Present(tuple(value)))
    first = tuple(equal_to(node, item) for item in value)
    items = Items(first, never(node), NO_SCOPES)
    return (of_type(ARRAY), items, ItemCount(len(value), len(value)))


def _differs(node: SchemaNode, value: list[Json] | dict[str, Json]) -> tuple[Option, ...]:
    if isinstance(value, dict):
        return (
            (of_no_type(OBJECT),),
            *_object_differs(node, value),
        )
    options: list[Option] = [
        (of_no_type(ARRAY),),
        (of_type(ARRAY), ItemCount(len(value) + 1, None)),
    ]
    if value:
        options.append((of_type(ARRAY), ItemCount(0, len(value) - 1)))
    for index, item in enumerate(value):
        first = (ANYTHING,) * index + (other_than(node, item),)
        items = Items(first, None, NO_SCOPES)
        options.append((of_type(ARRAY), items, ItemCount(index + 1, None)))
    return tuple(options)


def _object_differs(node: SchemaNode, value: dict[str, Json]) -> list[Option]:
    others = SomeMember(complement(literals(value)), ANYTHING, node.pointer)
    options: list[Option] = [(of_type(OBJECT), others)]
    for name, item in value.items():
        different = Members({name: other_than(node, item)}, (), None, NO_SCOPES)
        options.append((of_type(OBJECT), Absent(name)))
        options.append((of_type(OBJECT), Present((name,)), different))
    return options


VALUE_KEYWORDS: Final = (
    Keyword(("type",), _type_holds, _type_fails),
    _of_values("const"),
    _of_values("enum"),
)
