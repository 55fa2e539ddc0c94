"""Random schemas, values that are likely to satisfy them, and values that nearly do.

All from small pools, so that keywords meet: the same few names, strings and numbers everywhere.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from support.json_spellings import Json

NAMES = ("a", "b", "c", "ab", 'q"', "é")
STRINGS = ("", "a", "b", "ab", "abc", "ba", "aab", "é", "\n", "1", "a\\")
NUMBERS = (0, 1, 2, 3, 6, 15, -1, -2, Decimal("0.5"), Decimal("1.5"), Decimal("0.01"), 100)
PATTERNS = ("^a", "b$", "^[ab]*$", "a|1", "^(a|bc?)+$", "^[^a]", "^a{2,3}b?$", "b", "^$")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_MAX_REFERENCES = 8


class SchemaMaker:
    """Makes schemas, all from one source of choices."""

    def __init__(self, chooser: random.Random) -> None:
        self._chooser = chooser
        self._leaf_makers: Sequence[Callable[[int], dict[str, Json]]] = (
            self._type,
            self._type,
            self._constants,
            self._number,
            self._string,
        )
        self._makers = (
            *self._leaf_makers,
            self._object,
            self._object,
            self._object_more,
            self._array,
            self._array_more,
            self._logic,
            self._logic,
            self._condition,
            self._reference,
        )
        self._num_definitions = 0

    def make(self) -> dict[str, Json]:
        """Returns a schema, some with definitions that refer to each other."""
        self._num_definitions = self._chooser.choice((0, 0, 1, 2))
        schema = self._schema(3)
        if self._num_definitions:
            schema["$defs"] = {f"d{i}": self._any(2) for i in range(self._num_definitions)}
        return schema

    def _any(self, depth: int) -> Json:
        if self._chooser.random() < 0.08:
            return self._chooser.random() < 0.5
        return self._schema(depth)

    def _schema(self, depth: int) -> dict[str, Json]:
        if depth <= 0:
            return self._chooser.choice(self._leaf_makers)(depth)
        made: dict[str, Json] = {}
        for _ in range(self._chooser.choice((1, 1, 2, 2, 3))):
            made |= self._chooser.choice(self._makers)(depth)
        return made

    def _type(self, _: int) -> dict[str, Json]:
        if self._chooser.random() < 0.7:
            return {"type": self._chooser.choice(TYPES)}
        return {"type": list(self._chooser.sample(TYPES, 2))}

    def _constants(self, _: int) -> dict[str, Json]:
        if self._chooser.random() < 0.4:
            return {"const": any_value(self._chooser, 1)}
        values = [any_value(self._chooser, 1) for _ in range(self._chooser.choice((1, 2, 3, 5)))]
        return {"enum": list(values)}

    def _number(self, _: int) -> dict[str, Json]:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        made: dict[str, Json] = {
            keyword: self._chooser.choice(NUMBERS)
            for keyword in self._chooser.sample(bounds, self._chooser.choice((0, 1, 2)))
        }
        if not made or self._chooser.random() < 0.3:
            made["multipleOf"] = self._chooser.choice([each for each in NUMBERS if each > 0])
        return made

    def _string(self, _: int) -> dict[str, Json]:
        made: dict[str, Json] = {}
        if self._chooser.random() < 0.5:
            made["pattern"] = self._chooser.choice(PATTERNS)
        if self._chooser.random() < 0.5:
            made["minLength"] = self._chooser.choice((0, 1, 2))
        if self._chooser.random() < 0.5:
            made["maxLength"] = self._chooser.choice((0, 1, 2, 3))
        return made

    def _object(self, depth: int) -> dict[str, Json]:
        made: dict[str, Json] = {}
        if self._chooser.random() < 0.8:
            made["properties"] = {name: self._any(depth - 1) for name in self._some(NAMES)}
        if self._chooser.random() < 0.4:
            made["required"] = list(self._some(NAMES))
        if self._chooser.random() < 0.4:
            made["additionalProperties"] = self._any(depth - 1)
        return made

    def _object_more(self, depth: int) -> dict[str, Json]:
        chooser = self._chooser
        makers: dict[str, Callable[[], Json]] = {
            "patternProperties": lambda: {chooser.choice(PATTERNS): self._any(depth - 1)},
            "propertyNames": lambda: self._any(0),
            "minProperties": lambda: chooser.choice((0, 1, 2)),
            "maxProperties": lambda: chooser.choice((0, 1, 2)),
            "dependentRequired": lambda: {chooser.choice(NAMES): list(self._some(NAMES))},
            "dependentSchemas": lambda: {chooser.choice(NAMES): self._any(depth - 1)},
            "unevaluatedProperties": lambda: self._any(0),
        }
        keyword = chooser.choice(list(makers))
        return {keyword: makers[keyword]()}

    def _array(self, depth: int) -> dict[str, Json]:
        made: dict[str, Json] = {}
        if self._chooser.random() < 0.6:
            made["items"] = self._any(depth - 1)
        if self._chooser.random() < 0.3:
            number = self._chooser.choice((1, 2))
            made["prefixItems"] = [self._any(depth - 1) for _ in range(number)]
        if self._chooser.random() < 0.4:
            made["minItems"] = self._chooser.choice((0, 1, 2))
        if self._chooser.random() < 0.4:
            made["maxItems"] = self._chooser.choice((0, 1, 2, 3))
        return made

    def _array_more(self, depth: int) -> dict[str, Json]:
        match self._chooser.choice(("unique", "contains", "unevaluated")):
            case "unique":
                return {"uniqueItems": self._chooser.random() < 0.8}
            case "contains":
                made: dict[str, Json] = {"contains": self._any(depth - 1)}
                if self._chooser.random() < 0.4:
                    made["minContains"] = self._chooser.choice((0, 1, 2))
                if self._chooser.random() < 0.4:
                    made["maxContains"] = self._chooser.choice((1, 2))
                return made
            case _:
                return {"unevaluatedItems": self._any(0)}

    def _logic(self, depth: int) -> dict[str, Json]:
        keyword = self._chooser.choice(("allOf", "anyOf", "oneOf", "oneOf", "not"))
        if keyword == "not":
            return {"not": self._any(depth - 1)}
        number = self._chooser.choice((1, 2, 2, 3))
        return {keyword: [self._any(depth - 1) for _ in range(number)]}

    def _condition(self, depth: int) -> dict[str, Json]:
        made: dict[str, Json] = {"if": self._any(depth - 1)}
        for keyword in ("then", "else"):
            if self._chooser.random() < 0.7:
                made[keyword] = self._any(depth - 1)
        return made

    def _reference(self, depth: int) -> dict[str, Json]:
        if not self._num_definitions:
            return self._type(depth)
        return {"$ref": f"#/$defs/d{self._chooser.randrange(self._num_definitions)}"}

    def _some(self, pool: Sequence[str]) -> Sequence[str]:
        return self._chooser.sample(pool, self._chooser.choice((1, 2, 3)))


def any_value(chooser: random.Random, depth: int) -> Json:
    """Returns a value of any type."""
    kind = chooser.choice(TYPES if depth > 0 else TYPES[:-2])
    if kind == "array":
        return [any_value(chooser, depth - 1) for _ in range(chooser.choice((0, 1, 2)))]
    if kind == "object":
        names = chooser.sample(NAMES, chooser.choice((0, 1, 2)))
        return {name: any_value(chooser, depth - 1) for name in names}
    return simple_value(chooser, kind)


def simple_value(chooser: random.Random, kind: str) -> Json:
    """Returns a value of a type that has nothing inside."""
    match kind:
        case "null":
            return None
        case "boolean":
            return chooser.random() < 0.5
        case "string":
            return chooser.choice(STRINGS)
        case _:
            return chooser.choice(NUMBERS)


def nearly(chooser: random.Random, value: Json) -> Json:
    """Returns a value with one thing changed."""
    if isinstance(value, dict) and value and chooser.random() < 0.7:
        name = chooser.choice(list(value))
        match chooser.choice(("change", "drop", "add")):
            case "drop":
                return {other: value[other] for other in value if other != name}
            case "add":
                return {**value, chooser.choice(NAMES): any_value(chooser, 1)}
            case _:
                return {**value, name: nearly(chooser, value[name])}
    if isinstance(value, list) and value and chooser.random() < 0.7:
        index = chooser.randrange(len(value))
        return [*value[:index], nearly(chooser, value[index]), *value[index + 1 :]]
    if isinstance(value, str) and chooser.random() < 0.5:
        return value + chooser.choice(STRINGS)
    return any_value(chooser, 1)


class ValueMaker:
    """Makes values that are likely to satisfy a schema."""

    def __init__(self, chooser: random.Random, root: Json) -> None:
        self._chooser = chooser
        self._root = root

    def make(self) -> Json:
        """Returns a value; whether it is valid is for others to say."""
        return self._value([self._root], 3)

    def _value(self, schemas: Sequence[Json], depth: int) -> Json:
        flat = list(self._flatten(schemas, [_MAX_REFERENCES]))
        for schema in flat:
            if "const" in schema:
                return schema["const"]
            if isinstance(schema.get("enum"), list) and schema["enum"]:
                return self._chooser.choice(schema["enum"])
        kind = self._type(flat)
        if kind == "object":
            return self._object(flat, depth)
        if kind == "array":
            return self._array(flat, depth)
        return simple_value(self._chooser, kind)

    def _flatten(self, schemas: Sequence[Json], left: list[int]) -> Iterator[dict[str, Json]]:
        """Yields what holds in one place, with one choice taken of each disjunction."""
        for schema in schemas:
            if not isinstance(schema, dict) or left[0] <= 0:
                continue
            left[0] -= 1
            yield schema
            inner = list(schema.get("allOf", ()))
            for keyword in ("anyOf", "oneOf"):
                if schema.get(keyword):
                    inner.append(self._chooser.choice(schema[keyword]))
            if "if" in schema:
                branch = self._chooser.random() < 0.5
                inner += [schema["if"], schema.get("then")] if branch else [schema.get("else")]
            if isinstance(schema.get("$ref"), str) and isinstance(self._root, dict):
                inner.append(self._root["$defs"][schema["$ref"].rpartition("/")[2]])
            yield from self._flatten(inner, left)

    def _type(self, schemas: Sequence[dict[str, Json]]) -> str:
        kinds = set(TYPES)
        for schema in schemas:
            if "type" in schema:
                named = schema["type"]
                kinds &= {named} if isinstance(named, str) else set(named)
        named_by = {
            "object": ("properties", "required", "dependentRequired", "minProperties"),
            "array": ("items", "prefixItems", "contains", "minItems", "uniqueItems"),
            "string": ("pattern", "minLength", "maxLength"),
            "number": ("minimum", "maximum", "multipleOf", "exclusiveMinimum"),
        }
        likely = [
            kind
            for kind, keywords in named_by.items()
            if kind in kinds and any(word in schema for word in keywords for schema in schemas)
        ]
        return self._chooser.choice(likely or sorted(kinds) or TYPES)

    def _object(self, schemas: Sequence[dict[str, Json]], depth: int) -> Json:
        names = dict.fromkeys(name for each in schemas for name in each.get("required", ()))
        for schema in schemas:
            offered = list(schema.get("properties", ()))
            names |= dict.fromkeys(n for n in offered if self._chooser.random() < 0.5)
        if self._chooser.random() < 0.3:
            names[self._chooser.choice(NAMES)] = None
        return {
            name: self._value([self._member(each, name) for each in schemas], depth - 1)
            if depth > 0
            else any_value(self._chooser, 0)
            for name in names
        }

    def _member(self, schema: dict[str, Json], name: str) -> Json:
        properties = schema.get("properties", {})
        return properties.get(name, schema.get("additionalProperties"))

    def _array(self, schemas: Sequence[dict[str, Json]], depth: int) -> Json:
        least = max((each.get("minItems", 0) for each in schemas), default=0)
        number = least + self._chooser.choice((0, 1, 2))
        return [
            self._value([self._item(each, index) for each in schemas], depth - 1)
            if depth > 0
            else any_value(self._chooser, 0)
            for index in range(number)
        ]

    def _item(self, schema: dict[str, Json], index: int) -> Json:
        prefix = schema.get("prefixItems", [])
        if index < len(prefix):
            return prefix[index]
        return schema.get("items", schema.get("contains"))
