"""What callers say of an answer's looks, by flags and by the client's words."""

import argparse
import asyncio
from pathlib import Path

import pytest
from antiphon.v1.types_pb2 import Constraint, GenerationConfig, StopConditions
from google.protobuf.empty_pb2 import Empty

from antiphon_cli.constraint_flags import add_constraint, constraint_of
from antiphon_client import (
    Client,
    SyncClient,
    UnsupportedConstraint,
    choice,
    grammar,
    json_object,
    json_schema,
    raw_text,
    regex,
    structural_tag,
    unconstrained,
)
from support.server import running_server


def asked(*flags: str) -> Constraint | None:
    parser = argparse.ArgumentParser()
    add_constraint(parser)
    return constraint_of(parser.parse_args(flags))


def test_flags_make_the_constraint_that_they_name(tmp_path: Path) -> None:
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.ebnf"
    schema.write_text('{"type": "integer"}')
    rules.write_text('root ::= "a"')

    assert asked() is None
    assert asked("--json-schema", str(schema)) == Constraint(json_schema='{"type": "integer"}')
    compact = asked("--json-schema", str(schema), "--compact-json")
    assert compact == Constraint(json_schema='{"type": "integer"}', compact_json=True)
    assert asked("--json-object") == Constraint(json_object={})
    assert asked("--regex", "a+") == Constraint(regex="a+")
    assert asked("--regex", "") == Constraint(regex="")
    assert asked("--choice", "yes", "--choice", "no") == Constraint(
        choice={"options": ["yes", "no"]}
    )
    assert asked("--grammar", str(rules)) == Constraint(ebnf='root ::= "a"')
    tag = asked("--structural-tag", str(schema), "--compact-json")
    assert tag == Constraint(structural_tag='{"type": "integer"}', compact_json=True)


def test_compact_json_goes_with_json() -> None:
    with pytest.raises(ValueError, match="--compact-json goes with"):
        asked("--regex", "a", "--compact-json")


def test_two_kinds_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        asked("--regex", "a", "--json-object")

    assert "not allowed with" in capsys.readouterr().err


def test_the_clients_words_are_the_contracts() -> None:
    assert json_schema({"type": "null"}) == Constraint(json_schema='{"type": "null"}')
    assert json_schema("{}", compact=True) == Constraint(json_schema="{}", compact_json=True)
    assert json_schema(True) == Constraint(json_schema="true")
    assert json_object() == Constraint(json_object={})
    assert regex("a") == Constraint(regex="a")
    assert grammar("root ::= x") == Constraint(ebnf="root ::= x")
    assert structural_tag({"format": {}}) == Constraint(structural_tag='{"format": {}}')
    assert structural_tag("{}", compact=True) == Constraint(structural_tag="{}", compact_json=True)
    assert choice("a", "b") == Constraint(choice={"options": ["a", "b"]})
    assert unconstrained() == Constraint(none=Empty())


async def test_constraints_are_tried_and_refused_by_type(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        async with Client(server.target) as client:
            good = await client.validate_constraint(regex("a|b"))
            bad = await client.validate_constraint(regex("(a"))
            config = GenerationConfig(
                stop=StopConditions(max_output_tokens=3), constraint=regex("(a")
            )
            with pytest.raises(UnsupportedConstraint) as caught:
                await client.generate(raw_text("x"), config)

        def blocking() -> bool:
            with SyncClient(server.target) as client:
                return client.validate_constraint(choice("x")).valid

        assert await asyncio.to_thread(blocking)

    assert good.valid
    assert not bad.valid
    assert bad.violations[0].description == "position 0: this ( has no )"
    (violation,) = caught.value.details.violations
    assert violation.field == "config.constraint.regex"
