"""Constraints that can't be enforced: refused with their place, while others notice nothing."""

import asyncio
import json
import re

import grpc
import pytest
from antiphon.v1.inference_pb2 import ValidateConstraintRequest
from antiphon.v1.session_pb2 import CreateSessionRequest, Session, UpdateSessionRequest
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    GenerationConfig,
    SamplingParams,
    StopConditions,
)
from google.protobuf.field_mask_pb2 import FieldMask

from support.answers import LIMIT_S, ask
from support.json_spellings import Json
from support.multiplexing import Multiplexer
from support.refusals import refusal_of_both
from support.sampling_calls import RunningCall, request_for, token_ids_of
from support.schema_oracle import SchemaOracle
from support.server import RunningServer, details_of
from support.turn_runs import new_session

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = SamplingParams(temperature=0)


def schema(value: Json) -> Constraint:
    return Constraint(json_schema=json.dumps(value))


def tag(wanted: Json) -> Constraint:
    return Constraint(structural_tag=json.dumps({"type": "structural_tag", "format": wanted}))


BROKEN: dict[str, tuple[Constraint, str]] = {
    "open group": (Constraint(regex="x(yz"), "position 1"),
    "nothing to repeat": (Constraint(regex="+b"), "position 0"),
    "range backwards": (Constraint(regex="[q-c]"), "position"),
    "nothing matches": (Constraint(regex="a(?!b)b"), "position"),
    "look-behind": (Constraint(regex="(?<=x)y"), "position 0"),
    "reference back": (Constraint(regex=r"(x|y)-\1"), "position"),
    "unknown rule": (Constraint(ebnf='root ::= "x" tail'), "line 1"),
    "open text": (Constraint(ebnf='root ::= "x'), "line 1, column 10"),
    "no grammar": (Constraint(ebnf=""), "ebnf"),
    "no root": (Constraint(ebnf='first ::= "x"'), "line 1"),
    "rule twice": (Constraint(ebnf='root ::= "x"\nroot ::= "y"'), "line 2, column 1"),
    "rule without end": (Constraint(ebnf='root ::= "x" a\na ::= "y" a'), "no end"),
    "unknown format in a tag": (
        tag({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "pear"}]}),
        "structural_tag: format.elements[1].type: there is no format 'pear'",
    ),
    "tokens in a tag": (tag({"type": "token", "token": 3}), "structural_tag: format.type: 'token'"),
    "schema in a tag": (
        tag({"type": "json_schema", "json_schema": {"items": {"type": "pear"}}}),
        "format.json_schema#/items/type",
    ),
    "half of a character": (schema({"required": ["\ud800"]}), "#/required/0"),
    "half of a character in a tag": (
        tag({"type": "json_schema", "json_schema": {"enum": ["\udfff", 1]}}),
        "format.json_schema#/enum/0",
    ),
    "tag that is no JSON": (Constraint(structural_tag="{"), "line 1, column 2"),
    "no JSON": (Constraint(json_schema="[1,"), "line 1"),
    "unknown type": (schema({"type": "pear"}), "#/type"),
    "properties as a list": (schema({"type": "object", "properties": [1]}), "#/properties"),
    "nothing is valid": (schema(False), "#"),
    "empty enumeration": (schema({"enum": []}), "#"),
    "empty union": (schema({"anyOf": []}), "#"),
    "edges crossed": (schema({"type": "integer", "minimum": 9, "maximum": 7}), "#"),
    "pointer without hash": (
        schema({"properties": {"p": {"$ref": "/$defs/P"}}, "$defs": {"P": {"enum": [1]}}}),
        "/$defs/P",
    ),
    "reference elsewhere": (
        schema({"properties": {"p": {"$ref": "https://shapes.example.test/p.json"}}}),
        "shapes.example.test",
    ),
    "reference to nothing": (schema({"$ref": "#/$defs/Gone", "$defs": {}}), "Gone"),
    "reference to itself": (
        schema({"$ref": "#/$defs/N", "$defs": {"N": {"$ref": "#/$defs/N"}}}),
        "#",
    ),
    "counting too far": (Constraint(regex="x{1,100000}"), "position 0: it counts to 100000"),
    "counting what has no clear end": (Constraint(regex="([a-z]{1,20} ?){1,99}"), "position 0"),
    "longer than can be counted": (
        schema({"properties": {"p": {"maxLength": 10**5}}}),
        "#/properties/p/maxLength: is 100000, and at most 65535 characters",
    ),
    "a choice that is too long": (
        Constraint(choice=Choice(options=["a", "b" * 70_000])),
        "options[1]",
    ),
    "no choices": (Constraint(choice=Choice()), "at least one"),
    "empty choice": (Constraint(choice=Choice(options=["a", ""])), "options[1]"),
}


async def refusal(server: RunningServer, constraint: Constraint) -> grpc.aio.AioRpcError:
    request = request_for(GREEDY, stop=StopConditions(max_output_tokens=8))
    request.config.constraint.CopyFrom(constraint)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.inference.Generate(request, timeout=LIMIT_S)
    return caught.value


async def test_broken_constraints_are_refused_by_place_beside_a_stream_that_goes_on(
    tiny: RunningServer,
) -> None:
    within = request_for(GREEDY, stop=StopConditions(max_output_tokens=8))
    within.config.constraint.regex = "[d-f]{2}"
    plain = request_for(GREEDY, num_tokens=300)
    alone = await token_ids_of(tiny, plain)
    assert (await tiny.inference.Generate(within, timeout=LIMIT_S)).outputs[0].text in (
        f"{one}{other}" for one in "def" for other in "def"
    )
    refusing = True

    async def stream_on() -> list[list[int]]:
        """One stream behind the other, so that each refusal has one beside it."""
        told = []
        while refusing:
            told.append(await RunningCall(tiny, plain).token_ids())
        return told

    streams = asyncio.create_task(stream_on())

    for name, (constraint, place) in BROKEN.items():
        error = await refusal(tiny, constraint)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, name
        assert place in str(error.details()), (name, error.details())
        kind = constraint.WhichOneof("kind")
        (violation,) = details_of(error)["BadRequest"].field_violations
        assert violation.field.startswith(f"config.constraint.{kind}"), name

    assert not streams.done()
    refusing = False
    told = await streams
    assert told == [alone] * len(told)


async def test_every_method_refuses_what_is_broken_before_anything_comes(
    tiny: RunningServer,
) -> None:
    for name in (
        "open group",
        "unknown rule",
        "unknown type",
        "pointer without hash",
        "no choices",
    ):
        constraint, place = BROKEN[name]
        request = request_for(GREEDY, stop=StopConditions(max_output_tokens=8))
        request.config.constraint.CopyFrom(constraint)
        multiplexer = Multiplexer(tiny.inference, timeout=LIMIT_S)
        multiplexer.read_on()

        refusal = await refusal_of_both(tiny, request)
        await multiplexer.start(1, request)
        await multiplexer.finish()

        (failure,) = multiplexer.told[1].failures
        assert not multiplexer.told[1].events
        assert place in refusal.message
        assert place in failure.message
        assert refusal.reason == failure.reason


async def test_trying_a_constraint_says_the_same_as_a_refusal(tiny: RunningServer) -> None:
    for name, (constraint, place) in BROKEN.items():
        answer = await tiny.inference.ValidateConstraint(
            ValidateConstraintRequest(constraint=constraint), timeout=LIMIT_S
        )
        assert not answer.valid
        assert answer.compile_time.ToNanoseconds() == 0
        (violation,) = answer.violations
        assert place in f"{violation.field}: {violation.description}", name


ENFORCED = {
    "ahead": ("^(?=.*[A-F])[A-F0-9]{2,4}$", ["A1", "0F"], ["11"]),
    "not ahead": ("^(?!root$)[a-z]{4}$", ["user"], ["root"]),
    "short": (r"^\d{2}:\w\s?\/$", ["12:a /"], ["1:a/"]),
    "anywhere": ("[0-9]{3}", ["x123y"], ["x12y"]),
    "dot": ("^x.z$", ["xyz"], ["xz"]),
    "word": (r"\bcat\b", ["a cat!"], ["concat"]),
    "nothing or one": ("^(|q)$", ["", "q"], ["r"]),
}


NUM_SEEDS = 4


def one_field(pattern: str) -> Json:
    return {
        "type": "object",
        "properties": {"field_k": {"type": "string", "pattern": pattern, "maxLength": 12}},
        "required": ["field_k"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("name", ENFORCED)
async def test_patterns_hold(tiny: RunningServer, name: str) -> None:
    pattern, valid, invalid = ENFORCED[name]
    oracle = SchemaOracle(one_field(pattern))
    assert all(oracle.accepts({"field_k": text}) for text in valid)
    assert not any(oracle.accepts({"field_k": text}) for text in invalid)
    for seed in range(4, 4 + NUM_SEEDS):
        request = request_for(GREEDY, stop=StopConditions(max_output_tokens=60))
        request.config.sampling.CopyFrom(SamplingParams(temperature=1, seed=seed))
        request.config.constraint.CopyFrom(schema(one_field(pattern)))

        output = (await ask(tiny, request)).output

        assert oracle.accepts_text(output.text)
        # As most who check outputs in Python do; their words' edges are Unicode's.
        if name != "word":
            assert re.search(pattern, json.loads(output.text)["field_k"])


@pytest.mark.parametrize("pattern", ["(?<=x)y", r"^(x|y)\1$"])
async def test_patterns_that_no_grammar_has_are_refused_by_field(
    tiny: RunningServer, pattern: str
) -> None:
    error = await refusal(tiny, schema(one_field(pattern)))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "#/properties/field_k/pattern" in str(error.details())


async def test_defaults_of_sessions_are_checked_when_they_are_set(tiny: RunningServer) -> None:
    defaults = GenerationConfig(constraint=Constraint(regex="(a"))
    name = await new_session(tiny)
    update = UpdateSessionRequest(
        session=Session(name=name, defaults=defaults), update_mask=FieldMask(paths=["defaults"])
    )
    for call in (
        tiny.sessions.CreateSession(CreateSessionRequest(session=Session(defaults=defaults))),
        tiny.sessions.UpdateSession(update),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert details_of(caught.value)["ErrorInfo"].reason == "UNSUPPORTED_CONSTRAINT"
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == "session.defaults.constraint.regex"


async def test_what_does_not_go_with_a_constraint_is_refused_by_name(tiny: RunningServer) -> None:
    unending = request_for(GREEDY)
    unending.config.constraint.regex = "a+"
    for change, field in (
        (lambda config: None, "config.stop.ignore_eos"),
        (
            lambda config: config.MergeFrom(
                GenerationConfig(
                    stop=StopConditions(ignore_eos=False), constraint=Constraint(compact_json=True)
                )
            ),
            "config.constraint.compact_json",
        ),
    ):
        change(unending.config)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await tiny.inference.Generate(unending, timeout=LIMIT_S)
        assert details_of(caught.value)["ErrorInfo"].reason == "INVALID_FIELD"
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == field


async def test_many_constraints_at_once_are_each_answered(tiny: RunningServer) -> None:
    async def generate(number: int) -> str:
        request = request_for(GREEDY, stop=StopConditions(max_output_tokens=40))
        request.config.constraint.json_schema = json.dumps({"const": f"text {number % 24}"})
        answer = await tiny.inference.Generate(request, timeout=LIMIT_S)
        return str(answer.outputs[0].text)

    said = await asyncio.gather(*(generate(number) for number in range(64)))

    assert [json.loads(text) for text in said] == [f"text {number % 24}" for number in range(64)]
