"""`antiphon validate-constraint`, beside a service whose verdicts a test writes."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import grpc
import pytest
from antiphon.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from google.protobuf.duration_pb2 import Duration

from antiphon_cli.main import main
from support.scripted_services import refuse, serving

VALID = inference_pb2.ValidateConstraintResponse(
    valid=True, compile_time=Duration(nanos=12_340_000)
)
AT_FAULT = inference_pb2.ValidateConstraintResponse(
    violations=[
        types_pb2.FieldViolation(
            field="constraint.json_schema", description="#/properties/x/pattern: has a look behind"
        )
    ]
)


class Judge(inference_pb2_grpc.InferenceServiceServicer):
    """Says the same of each constraint, and keeps what it was asked."""

    def __init__(self, verdict: inference_pb2.ValidateConstraintResponse | None) -> None:
        self.verdict = verdict
        self.asked: list[inference_pb2.ValidateConstraintRequest] = []

    async def ValidateConstraint(self, request, context):
        self.asked.append(request)
        if self.verdict is None:
            await refuse(context, grpc.StatusCode.UNIMPLEMENTED, "no constraints here")
        return self.verdict


async def ask(judge: Judge, *words: str) -> int:
    async with serving(inference=judge) as target:
        return await asyncio.to_thread(main, ["validate-constraint", *words, "--target", target])


async def test_a_good_constraint_is_told_with_its_time(capsys) -> None:
    judge = Judge(VALID)

    status = await ask(judge, "--regex", "[0-9]+", "--model", "models/m")

    assert (status, capsys.readouterr().out) == (0, "valid: compiled in 12.3 ms\n")
    (asked,) = judge.asked
    assert (asked.model, asked.constraint.regex) == ("models/m", "[0-9]+")


async def test_one_that_asks_for_nothing_is_told_as_such(capsys) -> None:
    status = await ask(Judge(inference_pb2.ValidateConstraintResponse(valid=True)), "--json-object")

    assert (status, capsys.readouterr().out) == (0, "valid: nothing to compile\n")


async def test_a_fault_is_told_with_its_place_and_ends_with_one(tmp_path, capsys) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"pattern": "(?<=a)"}', encoding="utf-8")
    judge = Judge(AT_FAULT)

    status = await ask(judge, "--json-schema", str(schema))

    assert status == 1
    assert capsys.readouterr().out == (
        "not valid:\n  constraint.json_schema: #/properties/x/pattern: has a look behind\n"
    )
    assert judge.asked[0].constraint.json_schema == '{"pattern": "(?<=a)"}'


async def test_a_constraint_may_come_from_standard_input() -> None:
    judge = Judge(VALID)
    async with serving(inference=judge) as target:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon_cli.main", "validate-constraint"),
            *("--grammar", "-", "--target", target),
            stdin=PIPE,
            stdout=PIPE,
        )
        printed, _ = await command.communicate(b'root ::= "a"')

    assert printed == b"valid: compiled in 12.3 ms\n"
    assert judge.asked[0].constraint.ebnf == 'root ::= "a"'


@pytest.mark.parametrize(("verdict", "status"), [(VALID, 0), (AT_FAULT, 1)])
async def test_programs_get_one_object(verdict, status, capsys) -> None:
    assert await ask(Judge(verdict), "--choice", "a", "--json") == status

    told = json.loads(capsys.readouterr().out)
    assert told["valid"] is verdict.valid
    assert [each["field"] for each in told["violations"]] == (
        [] if verdict.valid else ["constraint.json_schema"]
    )
    assert told["compile_ms"] == (12.34 if verdict.valid else 0)


def test_a_constraint_must_be_named(capsys) -> None:
    assert main(["validate-constraint"]) == 2

    assert "--json-schema FILE" in capsys.readouterr().err


async def test_a_server_that_refuses_to_say_is_a_failure(capsys) -> None:
    assert await ask(Judge(None), "--regex", "a") == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "UNIMPLEMENTED" in captured.err or "doesn't know" in captured.err
