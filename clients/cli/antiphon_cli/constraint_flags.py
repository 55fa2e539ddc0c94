"""Flags that say what an answer must look like."""

import argparse
import sys
from pathlib import Path
from typing import Final

from antiphon.v1 import types_pb2

from antiphon_client import choice, grammar, json_object, json_schema, regex, structural_tag

_MAX_SHOWN: Final = 80
"""Characters of a name that stands in an error."""


def add_constraint(parser: argparse.ArgumentParser) -> None:
    """Declares the kinds, of which one may be given."""
    group = parser.add_argument_group(
        "what the answer must look like", "FILE may be -, for standard input."
    )
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument("--json-schema", type=Path, metavar="FILE", help="JSON that a schema allows")
    kinds.add_argument("--json-object", action="store_true", help="any JSON object")
    kinds.add_argument("--regex", metavar="EXPRESSION", help="a text that it matches as a whole")
    kinds.add_argument(
        "--choice",
        action="append",
        default=[],
        metavar="TEXT",
        help="one of these texts; may be given again",
    )
    kinds.add_argument(
        "--grammar", type=Path, metavar="FILE", help="a text of an EBNF grammar, from its rule root"
    )
    kinds.add_argument(
        "--structural-tag",
        type=Path,
        metavar="FILE",
        help="free text with constrained parts, as a structural tag in JSON says",
    )
    group.add_argument(
        "--compact-json", action="store_true", help="JSON without white space between its parts"
    )


def constraint_of(  # noqa: PLR0911 - one for each kind
    arguments: argparse.Namespace,
) -> types_pb2.Constraint | None:
    """Returns what the flags say.

    Raises:
        ValueError: a file can't be read or is no text, or --compact-json is given without JSON.
    """
    compact = True if arguments.compact_json else None
    if arguments.json_schema is not None:
        schema = _text_of(arguments.json_schema, "--json-schema")
        return json_schema(schema, compact=compact)
    if arguments.json_object:
        return json_object(compact=compact)
    if arguments.structural_tag is not None:
        tag = _text_of(arguments.structural_tag, "--structural-tag")
        return structural_tag(tag, compact=compact)
    if compact:
        raise ValueError(
            "--compact-json goes with --json-schema, --json-object and --structural-tag"
        )
    if arguments.regex is not None:
        return regex(arguments.regex)
    if arguments.choice:
        return choice(*arguments.choice)
    if arguments.grammar is not None:
        return grammar(_text_of(arguments.grammar, "--grammar"))
    return None


def _text_of(path: Path, flag: str) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    named = str(path)
    shown = named if len(named) <= _MAX_SHOWN else f"{named[:_MAX_SHOWN]}…"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        fault = error.strerror
    except UnicodeError:
        fault = "no text in UTF-8"
    raise ValueError(f"{flag} names a file, or - for standard input; {shown}: {fault}")
