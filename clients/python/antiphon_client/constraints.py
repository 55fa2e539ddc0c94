"""Short ways to say what an answer must look like, for `GenerationConfig.constraint`."""

import json
from collections.abc import Mapping

from antiphon.v1 import types_pb2
from google.protobuf import empty_pb2


def json_schema(
    schema: str | bool | Mapping[str, object], *, compact: bool | None = None
) -> types_pb2.Constraint:
    """Returns: JSON that a schema allows; with `compact`, without white space between its parts."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return types_pb2.Constraint(json_schema=text, compact_json=compact)


def json_object(*, compact: bool | None = None) -> types_pb2.Constraint:
    """Returns: any JSON object."""
    return types_pb2.Constraint(json_object=types_pb2.JsonObject(), compact_json=compact)


def regex(expression: str) -> types_pb2.Constraint:
    """Returns: a text that the expression matches from its beginning to its end."""
    return types_pb2.Constraint(regex=expression)


def grammar(ebnf: str) -> types_pb2.Constraint:
    """Returns: a text of an EBNF grammar, from its rule `root`."""
    return types_pb2.Constraint(ebnf=ebnf)


def choice(*options: str) -> types_pb2.Constraint:
    """Returns: one of these texts."""
    return types_pb2.Constraint(choice=types_pb2.Choice(options=options))


def structural_tag(
    tag: str | Mapping[str, object], *, compact: bool | None = None
) -> types_pb2.Constraint:
    """Returns: a text that a structural tag allows: free text with constrained parts.

    The tag is JSON, `{"type": "structural_tag", "format": {...}}`; with `compact`, JSON in the text
    is without white space between its parts.
    """
    text = tag if isinstance(tag, str) else json.dumps(tag)
    return types_pb2.Constraint(structural_tag=text, compact_json=compact)


def unconstrained() -> types_pb2.Constraint:
    """Returns what lifts a session's constraint for a turn."""
    return types_pb2.Constraint(none=empty_pb2.Empty())
