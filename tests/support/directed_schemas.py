"""Schemas around one keyword each, with values on both sides of where it decides.

Random schemas are wide: of the values that are likely for one, few lie where a keyword decides,
such as at a fraction's last digit, at as many items as `contains` asks for, or at a word's edge.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

from support.json_spellings import Json

_NAMES = ("a", "b", "ab", "é")
_LETTERS = ("a", "b", "é", "京", "😀", '"', "\\", "\n", "\u2028", "_", " ", "1")
_BESIDE_WORDS = ("", "", "é", "ß", "京", "K", "_", "-", " ", "1", "s", "\n", '"')
_WORD_PATTERNS = (
    r"\bcat\b", r"cat\b", r"\bcat", r"\Bcat", r"cat\B", r"^\w+\b", r"\b\w{3}\b", r"^cat\b.",
    r".\bcat$", r"(cat|é)\b",
)  # fmt: skip
_PATTERNS = (
    "^a",
    "b$",
    "^[ab]*$",
    "a|1",
    "^(a|bc?)+$",
    "^[^a]",
    "^a{2,3}b?$",
    "^.$",
    r"\w$",
    r"^\S",
)
_STEPS = ("0.1", "0.5", "0.25", "0.05", "1.5", "2.5", "0.01", "0.3", "1", "3", "7", "10")
_MAX_VALUES = 14
_NEARLY_APART: Sequence[tuple[dict[str, Json], dict[str, Json]]] = (
    # Both have {}, both have [], and so on: what keeps them apart need not be there.
    ({"type": "object", "properties": {"a": {"const": 1}}},
     {"type": "object", "properties": {"a": {"const": 2}}}),
    ({"type": "array", "prefixItems": [{"const": 1}]},
     {"type": "array", "prefixItems": [{"const": 2}]}),
    ({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
     {"type": "object", "properties": {"a": {"enum": [2, 3]}}, "required": ["a"]}),
    ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
     {"type": "object", "properties": {"a": {"const": 2}}}),
    ({"type": "array", "prefixItems": [{"const": 1}], "minItems": 1}, {"type": "array"}),
    ({"type": "array", "items": {"const": 1}}, {"type": "array", "items": {"const": 2}}),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Directed:
    """A schema, and values that are decided by what it is around."""

    schema: dict[str, Json]
    values: Sequence[Json]


Family = Callable[[random.Random, int], Directed]
"""Makes schemas of one kind; how they mainly differ goes by turn, and the rest by chance."""
_Choice = TypeVar("_Choice")


def in_turn(options: Sequence[_Choice], turn: int) -> _Choice:
    """Returns one of some options, each as often as the others."""
    return options[turn % len(options)]


def bounds(chooser: random.Random, turn: int) -> Directed:
    """Ranges of numbers, whose edges may be fractions."""
    schema: dict[str, Json] = {}
    values: list[Json] = []
    keywords = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    for keyword in dict.fromkeys((in_turn(keywords, turn), chooser.choice(keywords))):
        num_places = chooser.choice((0, 1, 1, 2, 2, 3))
        edge = Decimal(chooser.choice((-1, 1, 1)) * chooser.randint(0, 2500)).scaleb(-num_places)
        schema[keyword] = _plain(edge)
        values += _around(edge, num_places)
    if chooser.random() < 0.2:
        schema["type"] = chooser.choice(("integer", "number"))
    return Directed(schema=schema, values=values)


def steps(chooser: random.Random, turn: int) -> Directed:
    """Multiples of decimals, some beside a range, some negated."""
    step = Decimal(in_turn(_STEPS, turn))
    schema: dict[str, Json] = {"multipleOf": _plain(step)}
    values: list[Json] = []
    for times in (0, 1, *(chooser.randint(-40, 40) for _ in range(3))):
        values += chooser.sample(_around(step * times, _num_places(step)), 4)
        values.append(_plain(step * times))
    match in_turn(("alone", "two", "not", "range", "whole"), turn):
        case "whole":
            schema["type"] = "integer"
        case "range":
            edge = step * chooser.randint(-3, 9)
            schema[chooser.choice(("minimum", "exclusiveMaximum"))] = _plain(edge)
            values += [_plain(edge), _plain(edge + step), _plain(edge - step)]
        case "not":
            schema = {"type": "number", "not": schema}
        case "two":
            other = Decimal(chooser.choice(_STEPS))
            schema["allOf"] = [{"multipleOf": _plain(other)}]
            values += [_plain(other), _plain(other * step), _plain(other * step * 10)]
    return Directed(schema=schema, values=values)


def lengths(chooser: random.Random, turn: int) -> Directed:
    """Lengths in characters, of texts whose characters take from one byte to an escape."""
    low, high = chooser.randint(0, 3), chooser.choice((None, 0, 1, 2, 3, 5))
    schema: dict[str, Json] = {"minLength": low} | ({} if high is None else {"maxLength": high})
    if chooser.random() < 0.3:
        schema["pattern"] = chooser.choice(_PATTERNS)
    sizes = {max(low - 1, 0), low, low + 1, *(() if high is None else (high, high + 1))}
    texts = ["".join(chooser.choices(_LETTERS, k=size)) for size in sizes for _ in range(3)]
    return Directed(schema=schema, values=[*texts, *("ab" * size for size in sizes)])


def word_edges(chooser: random.Random, turn: int) -> Directed:
    """Edges of words: the letters of words are ASCII's."""
    texts = [
        chooser.choice(_BESIDE_WORDS) + chooser.choice(("cat", "cat", "ca", "é")) + behind
        for behind in chooser.sample(_BESIDE_WORDS, 8)
    ]
    return Directed(schema={"pattern": in_turn(_WORD_PATTERNS, turn)}, values=texts)


def containing(chooser: random.Random, turn: int) -> Directed:
    """So many items that something holds for."""
    wanted, other = chooser.choice(
        (({"const": 1}, [2, "1"]), ({"type": "string"}, [1, None]), ({"minimum": 2}, [1, 0]))
    )
    match = {"const": 1, "type": "a", "minimum": 3}[next(iter(wanted))]
    schema: dict[str, Json] = {"contains": wanted}
    low = chooser.choice((None, 0, 1, 2, 3))
    high = chooser.choice((None, None, 1, 2, 3))
    schema |= ({} if low is None else {"minContains": low}) | (
        {} if high is None else {"maxContains": high}
    )
    match in_turn(("alone", "count", "items", "first", "two"), turn):
        case "count":
            schema[chooser.choice(("minItems", "maxItems"))] = chooser.randint(1, 4)
        case "items":
            schema["items"] = {"enum": [match, other[0]]}
        case "first":
            schema["prefixItems"] = [{"const": chooser.choice((match, other[0]))}]
        case "two":
            schema["allOf"] = [{"contains": {"const": other[0]}}]
    values = []
    for _ in range(_MAX_VALUES):
        items: list[Json] = [match] * chooser.randint(0, 4)
        items += chooser.choices(other, k=chooser.randint(0, 2))
        chooser.shuffle(items)
        values.append(items)
    return Directed(schema={"type": "array", **schema}, values=values)


def distinct(chooser: random.Random, turn: int) -> Directed:
    """Items that differ, also objects and arrays, in whatever order their members come."""
    pool: list[Json] = [
        {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": 2}, {}, {"a": {"b": [1]}},
        {"a": {"b": [2]}}, [1], [1, 2], [[]], 1, Decimal("1.0"), "1", True, None,
    ]  # fmt: skip
    within = [*(each for pair in _NEARLY_APART for each in pair), {"enum": chooser.sample(pool, 3)}]
    schema: dict[str, Json] = {"type": "array", "uniqueItems": True}
    match in_turn(("pair", "one", "enum", "pair", "one", "few"), turn):
        case "pair":
            schema["prefixItems"] = list(in_turn(_NEARLY_APART, turn // 3))
            schema |= {"items": False} if chooser.random() < 0.5 else {"maxItems": 2}
        case "one":
            return Directed(schema={"oneOf": list(in_turn(_NEARLY_APART, turn // 3))}, values=pool)
        case "enum":
            simple = [1, Decimal("1.0"), 2, "1", True, None, "a"]
            schema["items"] = {"enum": chooser.sample(simple, 4)}
        case _:
            schema |= {"items": chooser.choice(within), "maxItems": chooser.choice((1, 2))}
    values: list[Json] = [[one, one] for one in chooser.sample(pool, 5)]
    values += [list(chooser.sample(pool, 2)) for _ in range(6)]
    values += [[{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{}, {}], [[], []], [{"a": 2}, {"a": 2}]]
    return Directed(schema=schema, values=[*values, [chooser.choice(pool)]])


def names(chooser: random.Random, turn: int) -> Directed:
    """What names members may have, beside what is said of members by their names."""
    of_names: Sequence[Json] = (
        {"pattern": chooser.choice(_PATTERNS)},
        {"maxLength": 1},
        {"minLength": 2},
        {"enum": list(chooser.sample(_NAMES, 2))},
        {"not": {"const": chooser.choice(_NAMES)}},
        {"const": chooser.choice(_NAMES)},
    )
    schema: dict[str, Json] = {"propertyNames": in_turn(of_names, turn)}
    return _of_members(chooser, schema)


def dependencies(chooser: random.Random, turn: int) -> Directed:
    """Members that ask for others."""
    one, other, third = chooser.sample(_NAMES, 3)
    needed: Json = chooser.choice(([other], [other, third], []))
    schema: dict[str, Json] = {"dependentRequired": {one: needed}}
    match in_turn(("alone", "chain", "schema", "older"), turn):
        case "chain":
            schema["dependentRequired"] = {one: [other], other: [third]}
        case "schema":
            schema = {"dependentSchemas": {one: {"required": [other], "maxProperties": 2}}}
        case "older":
            schema = {"dependencies": {one: chooser.choice((needed, {"required": [third]}))}}
    return _of_members(chooser, schema)


def conditions(chooser: random.Random, turn: int) -> Directed:
    """What holds depending on what else does."""
    one, other = chooser.sample(_NAMES, 2)
    of_objects: Sequence[Json] = (
        {"properties": {one: {"const": 1}}, "required": [one]},
        {"properties": {one: {"const": 1}}},
        {"required": [other]},
        {"maxProperties": 1},
        {"properties": {other: {"type": "string"}}, "required": [other]},
        {"not": {"required": [other]}},
    )
    of_scalars: Sequence[Json] = (
        {"type": "string"}, {"minimum": 2}, {"maxLength": 1}, {"type": "integer"},
        {"enum": [1, "a"]}, {"pattern": "^a"}, {"multipleOf": Decimal("0.5")},
    )  # fmt: skip
    scalar = turn % 2 == 1
    parts = chooser.sample(of_scalars if scalar else of_objects, 3)
    schema: dict[str, Json] = {"if": parts[0]}
    for keyword, part in zip(("then", "else"), parts[1:], strict=True):
        if chooser.random() < 0.8:
            schema[keyword] = part
    if chooser.random() < 0.2:
        schema = {"not": schema}
    if scalar:
        values: Sequence[Json] = [
            1,
            2,
            3,
            Decimal("1.5"),
            Decimal("2.25"),
            "",
            "a",
            "ab",
            "ba",
            None,
        ]
        return Directed(schema=schema, values=values)
    return _of_members(chooser, {"type": "object", **schema}, beside=False)


def references(chooser: random.Random, turn: int) -> Directed:
    """References with keywords beside them, and definitions that have others."""
    target = in_turn(_SIMPLE, turn)(chooser, turn)
    sibling = chooser.choice(_SIMPLE)(chooser, turn)
    schema = {**sibling.schema, "$ref": "#/$defs/d0", "$defs": {"d0": target.schema}}
    return Directed(schema=schema, values=_some_of_both(chooser, target, sibling))


def unions(chooser: random.Random, turn: int) -> Directed:
    """Two keywords that hold together, either of them, one of them, or one not."""
    one = in_turn(_SIMPLE, turn // 4)(chooser, turn)
    other = chooser.choice(_SIMPLE)(chooser, turn)
    keyword = in_turn(("oneOf", "not", "allOf", "anyOf"), turn)
    schema: dict[str, Json] = (
        {**one.schema, "not": other.schema}
        if keyword == "not"
        else {keyword: [one.schema, other.schema]}
    )
    return Directed(schema=schema, values=_some_of_both(chooser, one, other))


def members(chooser: random.Random, turn: int) -> Directed:
    """Members by name, pattern and number, and those that nothing else has looked at."""
    one, other = chooser.sample(_NAMES, 2)
    schema: dict[str, Json] = in_turn(
        (
            {"patternProperties": {chooser.choice(_PATTERNS): {"type": "integer"}}},
            {"minProperties": chooser.choice((1, 2)), "properties": {one: {}, other: {}}},
            {"maxProperties": chooser.choice((0, 1, 2))},
            {"required": [one], "maxProperties": 2},
            {"allOf": [{"properties": {one: {}}}], "unevaluatedProperties": False},
            {
                "anyOf": [
                    {"properties": {one: {"const": 1}}, "required": [one]},
                    {"required": [other]},
                ],
                "unevaluatedProperties": False,
            },
        ),
        turn,
    )
    return _of_members(chooser, {"type": "object", **schema})


def items(chooser: random.Random, turn: int) -> Directed:
    """Items by place and number, and those that nothing else has looked at."""
    kinds: Sequence[Json] = ({"type": "string"}, {"type": "integer"}, {"const": 1}, True, False)
    schema: dict[str, Json] = {"type": "array"}
    keywords = ("prefixItems", "items", "minItems", "maxItems")
    for keyword in dict.fromkeys((in_turn(keywords, turn), chooser.choice(keywords))):
        if keyword in ("minItems", "maxItems"):
            schema[keyword] = chooser.randint(0, 3)
        elif keyword == "items":
            schema[keyword] = chooser.choice(kinds)
        else:
            schema[keyword] = chooser.choices(kinds, k=chooser.choice((1, 2)))
    if turn % 3 == 2:
        schema["allOf"] = [{"prefixItems": [chooser.choice(kinds)]}]
        schema["unevaluatedItems"] = chooser.choice(kinds)
    pool: Sequence[Json] = (1, 2, "a", None)
    values = [chooser.choices(pool, k=chooser.randint(0, 4)) for _ in range(_MAX_VALUES)]
    return Directed(schema=schema, values=values)


_SIMPLE: Sequence[Family] = (
    bounds, steps, lengths, word_edges, containing, names, dependencies, conditions, members, items,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    family.__name__: family for family in (*_SIMPLE, distinct, references, unions)
}
"""By what they are around."""


def directed(chooser: random.Random, family: str, turn: int) -> Directed:
    """Returns a schema of a family, some of them inside of another, and values for it."""
    made = FAMILIES[family](chooser, turn)
    values = list(made.values)
    chooser.shuffle(values)
    values = values[:_MAX_VALUES]
    definitions = made.schema.pop("$defs", None)
    match chooser.choice(("root", "root", "root", "member", "item")):
        case "member":
            schema: dict[str, Json] = {"properties": {"p": made.schema}, "required": ["p"]}
            values = [{"p": value} for value in values]
        case "item":
            schema = {"type": "array", "items": made.schema, "maxItems": 2}
            values = [[value] for value in values]
        case _:
            schema = made.schema
    if definitions is not None:
        schema["$defs"] = definitions
    return Directed(schema=schema, values=values)


def _of_members(
    chooser: random.Random, schema: dict[str, Json], *, beside: bool = True
) -> Directed:
    """Objects with any of a few names, for a schema and what may stand beside it."""
    known = list(chooser.sample(_NAMES, chooser.choice((1, 2))))
    besides: Sequence[dict[str, Json]] = (
        {},
        {"properties": {name: {"type": ["integer", "string"]} for name in known}},
        {"properties": dict.fromkeys(known, True), "additionalProperties": False},
        {"required": known[:1]},
        {"minProperties": 1},
        {"patternProperties": {chooser.choice(_PATTERNS): {"type": "integer"}}},
        {"additionalProperties": {"type": "integer"}},
    )
    if beside:
        schema = {**chooser.choice(besides), **schema}
    pool: Sequence[Json] = (1, 1, 2, "a")
    values: list[Json] = []
    for _ in range(2 * _MAX_VALUES):
        chosen = chooser.sample(_NAMES, chooser.randint(0, 3))
        values.append({name: chooser.choice(pool) for name in chosen})
    return Directed(schema={"type": "object", **schema}, values=values)


def _some_of_both(chooser: random.Random, one: Directed, other: Directed) -> list[Json]:
    half = _MAX_VALUES // 2
    return [
        value
        for each in (one, other)
        for value in chooser.sample(list(each.values), min(half, len(each.values)))
    ]


def _around(edge: Decimal, num_places: int) -> list[Json]:
    """Numbers at an edge and next to it, down to one more place than it has."""
    near = [edge, -edge]
    for places in range(num_places + 2):
        near += [edge + Decimal(1).scaleb(-places), edge - Decimal(1).scaleb(-places)]
    near += [edge.quantize(Decimal(1).scaleb(-places)) for places in range(num_places)]
    return [_plain(each) for each in near]


def _num_places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def _plain(number: Decimal) -> Json:
    """Returns a number as JSON would have it read: whole ones are integers."""
    whole = int(number)
    return whole if number == whole else number.normalize()
