"""Constraints that someone would send who wants a server to work for nothing."""

import json
from collections.abc import Iterator

from antiphon.v1 import types_pb2

from support.json_spellings import Json


def hostile_constraints() -> Iterator[tuple[str, types_pb2.Constraint]]:
    """Yields names and constraints; whether they are refused or enforced, nobody else may feel."""
    for name, schema in _schemas():
        yield name, types_pb2.Constraint(json_schema=json.dumps(schema))
    for name, pattern in _regexes():
        yield name, types_pb2.Constraint(regex=pattern)
    for name, grammar in _grammars():
        yield name, types_pb2.Constraint(ebnf=grammar)
    options = [f"berth {number} of harbour {number * 7919 % 10007}" for number in range(20_000)]
    choice = types_pb2.Choice(options=options)
    yield "20,000 choices", types_pb2.Constraint(choice=choice)


def _schemas() -> Iterator[tuple[str, Json]]:
    yield "objects 50 deep", _nested(50)
    yield "objects 400 deep", _nested(400)
    yield (
        "union ladder",
        {
            "allOf": [
                {"oneOf": [_bounded(f"p{step}", branch) for branch in range(8)]}
                for step in range(12)
            ]
        },
    )
    yield (
        "conditions",
        {
            "allOf": [
                {
                    "if": {"properties": {f"p{n}": {"const": n}}, "required": [f"p{n}"]},
                    "then": {"required": [f"p{n + 1}"]},
                    "else": {"minProperties": 1},
                }
                for n in range(24)
            ]
        },
    )
    doubling: dict[str, Json] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(40)
    }
    yield "references that double", {"$ref": "#/$defs/d0", "$defs": doubling | {"d40": {}}}
    yield "40,000 texts", {"enum": [f"text {n * 7919} of {n}" for n in range(40_000)]}
    yield "arrays of a million", {"type": "array", "items": {"type": "string"}, "minItems": 10**6}
    yield "strings of a million", {"type": "string", "minLength": 10**6 - 1, "maxLength": 10**6}
    yield "repeated repetition", {"type": "string", "pattern": "^((a{1,99}b?){1,99}c?){1,99}$"}
    yield (
        "500 properties, half of them",
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "integer"} for n in range(500)},
            "additionalProperties": False,
            "minProperties": 250,
        },
    )
    yield (
        "200 patterns of names",
        {
            "type": "object",
            "patternProperties": {
                f"{chr(97 + n % 26)}.{{{n}}}": {"minimum": n} for n in range(200)
            },
        },
    )
    yield (
        "unique among 2,000",
        {"type": "array", "uniqueItems": True, "items": {"enum": [str(n) for n in range(2_000)]}},
    )
    yield "itself, five times", {"anyOf": [{"$ref": "#"}] * 5, "type": "array", "items": {}}


def _nested(depth: int) -> Json:
    schema: Json = {"type": "integer"}
    for level in range(depth):
        schema = {"type": "object", "properties": {f"a{level % 3}": schema}, "required": ["a0"]}
    return schema


def _bounded(name: str, branch: int) -> Json:
    return {"properties": {name: {"minimum": branch * 10, "maximum": branch * 10 + 15}}}


def _regexes() -> Iterator[tuple[str, str]]:
    yield "nested quantifiers", r"(((((a+)+)+)+)+)+b"
    yield "alternatives that overlap", r"(a|aa|aaa|a*|(a|b)*){1,60}c"
    yield "a far look back", r"(a|b)*a(a|b){64}"
    yield "counts of counts", r"((x{1,500}){1,500}){1,500}"
    yield "all of the letters", r"(\p{L}{0,200}\p{N}{0,200}){0,200}"


def _grammars() -> Iterator[tuple[str, str]]:
    yield "ambiguous sums", 'root ::= root "+" root | root "*" root | "1"'
    yield "ambiguous repetition", 'root ::= x*\nx ::= "a"* | "a" x | x "a" x'
    yield "nothing, again and again", 'root ::= e e e e e e root | "a"\ne ::= "" | e e'
    ladder = "\n".join(f"r{n} ::= r{n + 1} r{n + 1} | r{n + 1}" for n in range(40))
    yield "rules that double", f'root ::= r0\n{ladder}\nr40 ::= "a" | ""'
