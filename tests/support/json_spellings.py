"""Texts that say the same JSON value.

A grammar fixes an order of properties, and may admit one way to write a number. A value counts as
producible where one of its texts is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, permutations, product
from urllib.parse import unquote

Json = None | bool | int | float | Decimal | str | list["Json"] | dict[str, "Json"]

_MAX_SCHEMAS = 64
"""How many subschemas are asked for the order of one object's properties."""
_MAX_ORDERS = 2_000
_APPLICATORS = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A way to write a value down."""

    plain_numbers: bool = False
    """Without exponents, and without a fraction that is zero."""
    escaped_strings: bool = False
    """Strings, also names, begin with an escape for what needs none."""
    item_separator: str = ","
    key_separator: str = ":"


def valid_texts(value: Json, schema: Json) -> list[str]:
    """Returns texts of a value, the likeliest one first."""
    orders = [_ordered(value, schema, own_first=True), _ordered(value, schema, own_first=False)]
    spellings = [Spelling(), Spelling(plain_numbers=True)]
    texts = [write(each, spelling) for each in (*orders, value) for spelling in spellings]
    return list(dict.fromkeys(texts))


def reordered_texts(value: Json) -> Iterator[str]:
    """Yields texts of a value with its properties in other orders; of large values not all."""
    for each in islice(_orders(value), _MAX_ORDERS):
        yield write(each, Spelling())
        yield write(each, Spelling(plain_numbers=True))


def _orders(value: Json) -> Iterator[Json]:
    match value:
        case dict():
            for names in permutations(value):
                for members in product(*(_orders(value[name]) for name in names)):
                    yield dict(zip(names, members, strict=True))
        case list():
            yield from map(list, product(*map(_orders, value)))
        case _:
            yield value


def odd_texts(value: Json, schema: Json) -> list[str]:
    """Returns more texts of a value, which a model would hardly write, and parsers take."""
    ordered = _ordered(value, schema, own_first=True)
    spaced = Spelling(item_separator=", ", key_separator=": ")
    return [write(ordered, Spelling(escaped_strings=True)), write(ordered, spaced)]


def write(value: Json, spelling: Spelling) -> str:
    """Returns a value's text."""
    match value:
        case dict():
            members = [
                _string(name, spelling) + spelling.key_separator + write(member, spelling)
                for name, member in value.items()
            ]
            return "{" + spelling.item_separator.join(members) + "}"
        case list():
            return "[" + spelling.item_separator.join(write(i, spelling) for i in value) + "]"
        case str():
            return _string(value, spelling)
        case Decimal() | float():
            return _number(Decimal(value), spelling)
        case _:
            return json.dumps(value)


def _string(text: str, spelling: Spelling) -> str:
    if spelling.escaped_strings and text and text[0] <= "\uffff":
        return f'"\\u{ord(text[0]):04x}{_string(text[1:], Spelling())[1:]}'
    has_lone_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    return json.dumps(text, ensure_ascii=has_lone_surrogate)


def _number(number: Decimal, spelling: Spelling) -> str:
    if not spelling.plain_numbers:
        return str(number)
    plain = format(number, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _ordered(value: Json, schema: Json, *, own_first: bool) -> Json:
    """Returns a value with all properties in the order in which its schema names them."""
    return _order(value, [schema], _Document(schema, own_first=own_first))


def _order(value: Json, schemas: Sequence[Json], document: "_Document") -> Json:
    flat = document.flatten(schemas)
    for constant in (each for schema in flat for each in _constants(schema)):
        if _sorted(constant) == _sorted(value):
            return constant
    if isinstance(value, list):
        return [
            _order(item, [s for each in flat for s in _item_schemas(each, index)], document)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    names = dict.fromkeys(name for each in flat for name in _names(each) if name in value)
    names |= dict.fromkeys(value)
    return {
        name: _order(value[name], [s for e in flat for s in _member_schemas(e, name)], document)
        for name in names
    }


def _constants(schema: Mapping[str, Json]) -> Iterator[Json]:
    if "const" in schema:
        yield schema["const"]
    values = schema.get("enum")
    yield from values if isinstance(values, list) else ()


def _sorted(value: Json) -> str:
    """Returns a text that values share where only the order of their properties differs."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{name!r}:{_sorted(value[name])}" for name in value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_sorted, value)) + "]"
    return write(value, Spelling())


def _names(schema: Mapping[str, Json]) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        yield from properties
    if isinstance(required, list):
        yield from (name for name in required if isinstance(name, str))


def _member_schemas(schema: Mapping[str, Json], name: str) -> Iterator[Json]:
    properties, patterns = schema.get("properties"), schema.get("patternProperties")
    if isinstance(properties, dict) and name in properties:
        yield properties[name]
        return
    if isinstance(patterns, dict):
        yield from patterns.values()
    yield schema.get("additionalProperties")


def _item_schemas(schema: Mapping[str, Json], index: int) -> Iterator[Json]:
    for keyword in ("prefixItems", "items"):
        schemas = schema.get(keyword)
        if isinstance(schemas, list):
            yield from schemas[index : index + 1]
        else:
            yield schemas
    yield schema.get("additionalItems")


class _Document:
    """A schema's text as a whole, for references into it."""

    def __init__(self, root: Json, *, own_first: bool) -> None:
        self._root = root
        self._own_first = own_first

    def flatten(self, schemas: Sequence[Json]) -> list[dict[str, Json]]:
        """Returns the schemas with all that apply in the same place, in order."""
        found: dict[int, dict[str, Json]] = {}
        for schema in schemas:
            self._collect(schema, found)
        return list(found.values())

    def _collect(self, schema: Json, found: dict[int, dict[str, Json]]) -> None:
        if not isinstance(schema, dict) or id(schema) in found or len(found) >= _MAX_SCHEMAS:
            return
        found[id(schema)] = schema
        for each in self._applied(schema):
            self._collect(each, found)
        if not self._own_first:
            found[id(schema)] = found.pop(id(schema))

    def _applied(self, schema: dict[str, Json]) -> Iterator[Json]:
        for keyword, value in schema.items():
            if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield self._target(value)
            elif keyword in _APPLICATORS:
                if isinstance(value, dict) and keyword.startswith("depend"):
                    yield from value.values()
                else:
                    yield from value if isinstance(value, list) else [value]

    def _target(self, reference: str) -> Json:
        """Returns what a reference within the document points to, as far as pointers tell."""
        target = self._root
        for escaped in unquote(reference.partition("#")[2]).split("/")[1:]:
            part = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(part)
            elif isinstance(target, list) and part.isdigit() and int(part) < len(target):
                target = target[int(part)]
            else:
                return None
        return target
