"""`antiphon validate-constraint`: whether answers can be held to a constraint."""

import argparse
import json

from antiphon.v1 import inference_pb2

from antiphon_cli.config_flags import add_model
from antiphon_cli.connection_flags import add_connection, connect
from antiphon_cli.constraint_flags import add_constraint, constraint_of
from antiphon_cli.failures import report
from antiphon_cli.outcome import FAILED, WRONG_USE, complain, complain_of
from antiphon_client import ServerError

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
    try:
        constraint = constraint_of(arguments)
        if constraint is None:
            complain("name a constraint, such as --json-schema FILE; --help lists its kinds")
            return WRONG_USE
        connected = connect(arguments)
    except UnicodeError:
        raise
    except (OSError, ValueError) as error:
        complain_of(error)
        return WRONG_USE
    with connected as client:
        try:
            response = client.validate_constraint(constraint, model=arguments.model)
        except ServerError as error:
            return report(error, arguments.target)
    if arguments.json:
        print(json.dumps(_plain(response)))
    elif response.valid:
        print(f"valid: {_compiled(_milliseconds(response))}")
    else:
        print("not valid:")
        for violation in response.violations:
            print(f"  {violation.field}: {violation.description}")
    return 0 if response.valid else FAILED


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
