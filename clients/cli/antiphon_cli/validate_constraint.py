"""`antiphon validate-constraint`: whether answers can be held to a constraint."""

import argparse
import json

from antiphon.v1 import inference_pb2, types_pb2

from antiphon_cli.asking import ask
from antiphon_cli.config_flags import add_model
from antiphon_cli.connection_flags import add_connection
from antiphon_cli.constraint_flags import add_constraint, constraint_of
from antiphon_cli.outcome import FAILED
from antiphon_client import SyncClient

DESCRIPTION = """\
Asks a server whether answers can be held to a constraint: exactly, or not at all. Where they can,
says how long it took to compile; where not, which part is at fault and why, and ends with 1."""
EXAMPLES = """\
examples:
  antiphon validate-constraint --json-schema person.json
  jq .response_format.schema call.json | antiphon validate-constraint --json-schema -
  antiphon validate-constraint --regex "[0-9]{4}-[0-9]{2}-[0-9]{2}"
  antiphon validate-constraint --grammar list.ebnf --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    add_constraint(parser)
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks, and returns the exit status."""

    def validate(client: SyncClient, constraint: types_pb2.Constraint) -> int:
        response = client.validate_constraint(constraint, model=arguments.model)
        _print(response, as_json=arguments.json)
        return 0 if response.valid else FAILED

    return ask(arguments, _constraint, validate)


def _constraint(arguments: argparse.Namespace) -> types_pb2.Constraint:
    constraint = constraint_of(arguments)
    if constraint is None:
        raise ValueError("name a constraint, such as --json-schema FILE; --help lists its kinds")
    return constraint


def _print(response: inference_pb2.ValidateConstraintResponse, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(response)))
    elif response.valid:
        print(f"valid: {_compiled(_milliseconds(response))}")
    else:
        print("not valid:")
        for violation in response.violations:
            print(f"  {violation.field}: {violation.description}")


def _plain(response: inference_pb2.ValidateConstraintResponse) -> object:
    violations = [
        {"field": each.field, "description": each.description} for each in response.violations
    ]
    return {
        "valid": response.valid,
        "violations": violations,
        "compile_ms": _milliseconds(response),
    }


def _milliseconds(response: inference_pb2.ValidateConstraintResponse) -> float:
    return round(response.compile_time.ToTimedelta().total_seconds() * 1e3, 3)


def _compiled(milliseconds: float) -> str:
    return f"compiled in {milliseconds:.1f} ms" if milliseconds else "nothing to compile"
