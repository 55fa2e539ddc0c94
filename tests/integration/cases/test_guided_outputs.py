"""Outputs of a random model are what their constraint says, or the request was refused."""

import json
import re

import pytest
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    FinishReason,
    GenerationConfig,
    JsonObject,
    SamplingParams,
    StopConditions,
)

from support.answers import LIMIT_S, ask
from support.json_spellings import Json
from support.sampling_calls import request_for
from support.schema_oracle import SchemaOracle
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOP = FinishReason.FINISH_REASON_STOP
OUT_OF_TOKENS = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
MAX_TOKENS = 200
OUTSIDE_OF_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|([ \t\r\n]+)')

PARCEL: Json = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "maxLength": 6},
        "pieces": {"type": "integer", "minimum": 1, "maximum": 30},
        "grams": {"type": "number", "exclusiveMinimum": 0, "maximum": 40},
    },
    "required": ["label"],
    "additionalProperties": False,
    "anyOf": [{"required": ["pieces"]}, {"required": ["grams"]}],
}
"""A union beside the keywords of an object: both hold."""

NUM_RUNS = {"union beside keywords": 20}
SCHEMAS: dict[str, Json] = {
    "union beside keywords": PARCEL,
    "length beside pattern": {
        "type": "string",
        "pattern": "^[a-d]+$",
        "minLength": 3,
        "maxLength": 5,
    },
    "edges of numbers": {
        "type": "array",
        "items": {"type": "integer", "exclusiveMinimum": -3, "maximum": 12},
        "minItems": 2,
        "maxItems": 4,
    },
    "references with escapes": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/m~1s"}, "b": {"$ref": "#/$defs/per%20cent"}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"m/s": {"enum": [1, 2, 3]}, "per cent": {"type": "boolean"}},
    },
    "choice of constants": {"enum": ["red", "green", None, 7]},
}


def guided(constraint: Constraint, seed: int, **sampling: object) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(**{"temperature": 1.2, "seed": seed, **sampling}),
        stop=StopConditions(max_output_tokens=MAX_TOKENS),
        constraint=constraint,
    )


async def texts(
    server: RunningServer, constraint: Constraint, num_runs: int = 6, temperature: float = 1.2
) -> list[str]:
    """Returns what was said in runs that ended by themselves; the others ran out of tokens."""
    said = []
    for seed in range(num_runs):
        request = request_for(SamplingParams())
        request.config.CopyFrom(guided(constraint, seed, temperature=temperature))
        answer = await server.inference.Generate(request, timeout=LIMIT_S)
        (output,) = answer.outputs
        assert output.finish_reason in (STOP, OUT_OF_TOKENS)
        if output.finish_reason == STOP:
            said.append(output.text)
    assert said
    return said


@pytest.mark.parametrize("name", SCHEMAS)
async def test_what_ends_by_itself_satisfies_its_schema(tiny: RunningServer, name: str) -> None:
    oracle = SchemaOracle(SCHEMAS[name])
    constraint = Constraint(json_schema=json.dumps(SCHEMAS[name]))
    for text in await texts(tiny, constraint, num_runs=NUM_RUNS.get(name, 6)):
        assert oracle.accepts_text(text)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(json_schema=json.dumps(PARCEL)),
        Constraint(regex="([a-f]{1,9} )+[xy]"),
        Constraint(ebnf='root ::= "x"{2,100000000} "y" | "z" root'),
    ],
    ids=["schema", "expression", "grammar"],
)
async def test_a_stream_says_what_the_whole_answer_says(
    tiny: RunningServer, constraint: Constraint
) -> None:
    said = set()
    for seed in range(4):
        request = request_for(SamplingParams())
        request.config.CopyFrom(guided(constraint, seed))
        request.config.stop.max_output_tokens = 60
        request.config.output.token_ids = True
        said.add((await ask(tiny, request)).text)
    # It is the seed that both go by.
    assert len(said) > 1


async def test_any_object_is_an_object(tiny: RunningServer) -> None:
    constraint = Constraint(json_object=JsonObject())
    request = request_for(SamplingParams())
    request.config.CopyFrom(guided(constraint, 5, temperature=0.4))

    output = (await ask(tiny, request)).output

    assert output.text.lstrip().startswith("{")
    assert output.finish_reason != STOP or isinstance(json.loads(output.text), dict)


async def test_expressions_match_the_whole(tiny: RunningServer) -> None:
    for expression in ("[a-c]{2}", "^(?!ab)[ab]{2}$", "(yes|no)( (yes|no)){1,2}"):
        for text in await texts(tiny, Constraint(regex=expression), num_runs=4):
            assert re.fullmatch(expression, text)


async def test_grammars_hold(tiny: RunningServer) -> None:
    grammar = 'root ::= "<" inner ">"\ninner ::= [xy]{1,3} | "<" inner ">"\n'
    for text in await texts(tiny, Constraint(ebnf=grammar), num_runs=4):
        depth = len(text) - len(text.lstrip("<"))
        assert re.fullmatch(f"<{{{depth}}}[xy]{{1,3}}>{{{depth}}}", text)


async def test_structural_tags_hold(tiny: RunningServer) -> None:
    numbers = {"type": "array", "items": {"enum": [1, 22]}, "maxItems": 2}
    thought = {"type": "any_text", "max_chars": 3}
    elements = [
        {"type": "tag", "begin": "<t>", "content": thought, "end": ["</t>", "</u>"]},
        {"type": "plus", "content": {"type": "json_schema", "json_schema": numbers}},
        {"type": "const_string", "value": "."},
    ]
    tag = json.dumps({"format": {"type": "sequence", "elements": elements}})

    for text in await texts(tiny, Constraint(structural_tag=tag, compact_json=True), num_runs=4):
        wanted = r"<t>(?s:.{0,3})</[tu]>(\[((1|22)(,(1|22))?)?\])+\."
        assert re.fullmatch(wanted, text), text


async def test_each_choice_can_be_made_and_nothing_else(tiny: RunningServer) -> None:
    options = ["ab", "abc", "né", '"q"']

    constraint = Constraint(choice=Choice(options=options))
    # So hot that every token which is allowed is as likely as the others.
    said = await texts(tiny, constraint, num_runs=40, temperature=100)

    assert set(said) == set(options)


async def test_several_outputs_are_each_held_to_it(tiny: RunningServer) -> None:
    request = request_for(SamplingParams())
    request.config.CopyFrom(guided(Constraint(regex="[ab]{3}"), 3))
    request.num_outputs = 4

    answer = await tiny.inference.Generate(request, timeout=LIMIT_S)

    assert len(answer.outputs) == 4
    assert all(re.fullmatch("[ab]{3}", output.text) for output in answer.outputs)


@pytest.mark.parametrize("compact", [False, True])
async def test_white_space_is_bounded_however_much_the_model_likes_it(
    tiny: RunningServer, compact: bool
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "sizes": {"type": "array", "items": {"enum": [1]}, "minItems": 1, "maxItems": 2},
            "on": {"type": "boolean"},
        },
        "required": ["name", "sizes", "on"],
        "additionalProperties": False,
    }
    blank_ids = [
        token_id
        for token_id in range(1000)
        if (token := tiny.model.tokenizer.token_bytes(token_id)) and not token.strip(b" \t\r\n")
    ]
    constraint = Constraint(json_schema=json.dumps(schema), compact_json=compact)
    request = request_for(SamplingParams())
    request.config.CopyFrom(guided(constraint, 1, temperature=0))
    for token_id in blank_ids:
        request.config.sampling.logit_bias[token_id] = 50

    output = (await ask(tiny, request)).output

    assert output.finish_reason == STOP
    assert SchemaOracle(schema).accepts_text(output.text)
    runs = [len(run) for run in OUTSIDE_OF_STRINGS.findall(output.text)]
    assert max(runs, default=0) == (0 if compact else 16)


async def test_a_model_that_loves_blanks_of_one_byte_ends_well_within_its_tokens(
    tiny: RunningServer,
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"enum": list("abc")}, "minItems": 1, "maxItems": 3},
            "ok": {"type": "boolean"},
        },
        "required": ["title", "tags", "ok"],
        "additionalProperties": False,
    }
    request = request_for(SamplingParams())
    request.config.CopyFrom(guided(Constraint(json_schema=json.dumps(schema)), 1, temperature=0))
    request.config.stop.max_output_tokens = 256
    (blank_id,) = tiny.model.tokenizer.encode(
        " ", add_special_tokens=False, allow_special_tokens=False
    )
    request.config.sampling.logit_bias[blank_id] = 100

    answer = await ask(tiny, request)

    # Lines may be broken at eight places, with 16 blanks each; elsewhere one is allowed.
    assert answer.output.finish_reason == STOP
    assert SchemaOracle(schema).accepts_text(answer.text)
    assert answer.usage.output_tokens < 192


async def test_prompts_are_told_of_alike_whatever_must_hold_for_the_answer(
    tiny: RunningServer,
) -> None:
    free, held = request_for(SamplingParams(temperature=0)), request_for(SamplingParams())
    held.config.CopyFrom(guided(Constraint(regex="[xyz]{3}"), 1, temperature=0))
    for request in (free, held):
        request.config.output.prompt_logprobs = True
        request.config.output.top_logprobs = 2
        request.config.stop.max_output_tokens = 8

    told = await ask(tiny, held)
    expected = (await ask(tiny, free)).prompt_logprobs

    assert re.fullmatch("[xyz]{3}", told.text)
    assert len(told.prompt_logprobs) == told.usage.prompt_tokens - 1
    for entry, other in zip(told.prompt_logprobs, expected, strict=True):
        values = [[top.logprob for top in (each.chosen, *each.top)] for each in (entry, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
