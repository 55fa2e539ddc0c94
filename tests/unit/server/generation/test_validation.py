"""Every field of a config: its range, its path in the refusal, its value in force."""

import math

import pytest
from antiphon.v1.types_pb2 import (
    Constraint,
    GenerationConfig,
    OutputOptions,
    ReasoningConfig,
    SamplingParams,
    StopConditions,
    ToolChoice,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_engine.api.errors import AntiphonError, ErrorReason, InvalidRequest
from antiphon_engine.api.handle import EngineState
from antiphon_server.served_model import ServedModel
from antiphon_server.validation import (
    ResolvedConfig,
    check_config,
    resolve_config,
    resolve_num_outputs,
)
from support.fake_engine import FACTS, FakeEngine
from support.served_models import TextSide, served_model

V = FACTS.vocabulary_size
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def model(byte_level: TextSide) -> ServedModel:
    return served_model(byte_level, FakeEngine())


def resolve(
    config: GenerationConfig, model: ServedModel, *, prompt_tokens: int = 3
) -> ResolvedConfig:
    return resolve_config(
        config,
        model=model,
        prompt_tokens=prompt_tokens,
        num_outputs=1,
        path="config",
        draw_seed=lambda: 99,
    )


def fields_at_fault(config: GenerationConfig, model: ServedModel) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        resolve(config, model)
    assert caught.value.reason is ErrorReason.INVALID_FIELD
    return [violation.field for violation in caught.value.violations]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 1e-8, 1e-5, 1e-3, 1, 100, 1e9], [-0.1, 1.001e9, 1e30, NAN, INF, -INF]),
        ("top_p", [1e-9, 0.5, 1], [0, -0.1, 1.0001, NAN, INF]),
        ("min_p", [0, 0.5, 1], [-0.1, 1.5, NAN, INF]),
        ("presence_penalty", [-2, 0, 2], [-2.1, 3, NAN]),
        ("frequency_penalty", [-2, 0, 2], [-2.1, 3, NAN]),
        ("repetition_penalty", [0.5, 1, 1.5, 10], [0, -1, 10.1, NAN, INF]),
    ],
)
def test_sampling_ranges(
    name: str, good: list[float], bad: list[float], model: ServedModel
) -> None:
    for value in good:
        resolve(GenerationConfig(sampling=SamplingParams(**{name: value})), model)  # type: ignore[arg-type]
    for value in bad:
        config = GenerationConfig(sampling=SamplingParams(**{name: value}))  # type: ignore[arg-type]
        assert fields_at_fault(config, model) == [f"config.sampling.{name}"]


@pytest.mark.parametrize(("asked", "in_force"), [(0, 0), (1e-8, 0), (1e-5, 0), (1e-3, 1e-3)])
def test_tiny_temperatures_are_greedy(asked: float, in_force: float, model: ServedModel) -> None:
    resolved = resolve(GenerationConfig(sampling=SamplingParams(temperature=asked)), model)

    assert resolved.sampling.temperature == pytest.approx(in_force)
    assert resolved.effective.sampling.temperature == pytest.approx(in_force)


@pytest.mark.parametrize(
    ("asked", "in_force"), [(0, 0), (1, 1), (V - 1, V - 1), (V, 0), (V + 1, 0), (2**32 - 1, 0)]
)
def test_top_k_of_the_vocabulary_or_more_keeps_all(
    asked: int, in_force: int, model: ServedModel
) -> None:
    resolved = resolve(GenerationConfig(sampling=SamplingParams(top_k=asked)), model)

    assert resolved.sampling.top_k == in_force


@pytest.mark.parametrize("token_id", [V, V + 500, 2**31 - 1, 2**32 - 1])
def test_token_ids_beyond_the_vocabulary_are_refused_by_field(
    token_id: int, model: ServedModel
) -> None:
    biased = GenerationConfig(sampling=SamplingParams(logit_bias={token_id: 1.0}))
    stopping = GenerationConfig(stop=StopConditions(stop_token_ids=[0, token_id]))

    assert fields_at_fault(biased, model) == [f"config.sampling.logit_bias[{token_id}]"]
    assert fields_at_fault(stopping, model) == ["config.stop.stop_token_ids[1]"]


def test_last_token_id_of_the_model_is_taken_though_the_tokenizer_has_fewer(
    model: ServedModel,
) -> None:
    assert model.tokenizer.vocabulary_size < V

    resolved = resolve(
        GenerationConfig(
            sampling=SamplingParams(logit_bias={V - 1: -100}),
            stop=StopConditions(stop_token_ids=[V - 1]),
        ),
        model,
    )

    assert resolved.sampling.logit_bias == {V - 1: -100}
    assert resolved.stop.stop_ids == (V - 1,)


def test_more_biases_than_allowed_are_one_violation(model: ServedModel) -> None:
    config = GenerationConfig(sampling=SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0)))

    assert "config.sampling.logit_bias" in fields_at_fault(config, model)


@pytest.mark.parametrize("bias", [-100.1, 101, NAN, INF])
def test_bias_out_of_range_is_refused(bias: float, model: ServedModel) -> None:
    config = GenerationConfig(sampling=SamplingParams(logit_bias={3: bias}))

    assert fields_at_fault(config, model) == ["config.sampling.logit_bias[3]"]


@pytest.mark.parametrize(
    ("stop", "field"),
    [
        (StopConditions(max_output_tokens=0), "max_output_tokens"),
        (StopConditions(max_output_tokens=3, min_output_tokens=4), "min_output_tokens"),
        (StopConditions(stop_strings=["ok", ""]), "stop_strings[1]"),
        (StopConditions(stop_strings=["x" * 257]), "stop_strings[0]"),
        (StopConditions(stop_strings=["a"] * 17), "stop_strings"),
        (StopConditions(stop_token_ids=[1] * 65), "stop_token_ids"),
        (StopConditions(time_limit=Duration()), "time_limit"),
        (StopConditions(time_limit=Duration(seconds=-1)), "time_limit"),
        (StopConditions(time_limit=Duration(seconds=1, nanos=-1)), "time_limit"),
    ],
)
def test_stop_conditions_out_of_range_are_refused(
    stop: StopConditions, field: str, model: ServedModel
) -> None:
    assert fields_at_fault(GenerationConfig(stop=stop), model) == [f"config.stop.{field}"]


def test_stop_conditions_at_their_limits_are_taken(model: ServedModel) -> None:
    stop = StopConditions(
        max_output_tokens=4,
        min_output_tokens=4,
        stop_strings=["好" * 256] * 16,
        stop_token_ids=[1] * 64,
        time_limit=Duration(nanos=1),
    )

    resolved = resolve(GenerationConfig(stop=stop), model)

    assert resolved.stop.min_output_tokens == resolved.stop.max_output_tokens == 4
    assert resolved.stop_strings == ("好" * 256,) * 16
    assert resolved.time_limit_s == pytest.approx(1e-9)


def test_all_faults_are_told_at_once(model: ServedModel) -> None:
    config = GenerationConfig(
        sampling=SamplingParams(temperature=-1, top_p=2),
        stop=StopConditions(stop_strings=[""]),
        output=OutputOptions(top_logprobs=21),
        priority=101,
    )

    assert fields_at_fault(config, model) == [
        "config.sampling.temperature",
        "config.sampling.top_p",
        "config.stop.stop_strings[0]",
        "config.priority",
        "config.output.top_logprobs",
    ]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (GenerationConfig(constraint=Constraint()), "constraint"),
        (GenerationConfig(constraint=Constraint(compact_json=True)), "constraint"),
        (
            GenerationConfig(constraint=Constraint(none=Empty(), compact_json=False)),
            "constraint.compact_json",
        ),
        (GenerationConfig(tool_choice=ToolChoice()), "tool_choice"),
        (GenerationConfig(tool_choice=ToolChoice(mode=9)), "tool_choice.mode"),  # type: ignore[arg-type]
        (GenerationConfig(tool_choice=ToolChoice(tool_name="")), "tool_choice.tool_name"),
        (GenerationConfig(tool_choice=ToolChoice(parallel_calls=False)), "tool_choice"),
        (
            GenerationConfig(tool_choice=ToolChoice(tool_name="clock", parallel_calls=True)),
            "tool_choice.parallel_calls",
        ),
    ],
)
def test_choices_that_were_not_made_are_refused(
    config: GenerationConfig, field: str, model: ServedModel
) -> None:
    assert fields_at_fault(config, model) == [f"config.{field}"]


@pytest.mark.parametrize(
    ("config", "capability", "field"),
    [
        (ToolChoice(mode=ToolChoice.MODE_REQUIRED), "tools", "tool_choice"),
        (ToolChoice(tool_name="clock"), "tools", "tool_choice"),
        (ReasoningConfig(enabled=False), "reasoning", "reasoning.enabled"),
        (ReasoningConfig(max_tokens=1), "reasoning", "reasoning.max_tokens"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    config: ToolChoice | ReasoningConfig,
    capability: str,
    field: str,
    model: ServedModel,
) -> None:
    name = field.partition(".")[0]

    with pytest.raises(AntiphonError) as caught:
        check_config(GenerationConfig(**{name: config}), model=model, path="config")  # type: ignore[arg-type]

    assert caught.value.reason is ErrorReason.UNSUPPORTED_FEATURE
    assert caught.value.metadata == {"capability": capability, "field": f"config.{field}"}
    offered = getattr(model.describe().capabilities, capability)
    assert not offered


def test_prompts_are_told_of_with_as_many_tokens_as_outputs(model: ServedModel) -> None:
    plain = resolve(GenerationConfig(output=OutputOptions(top_logprobs=3)), model)
    alone = resolve(GenerationConfig(output=OutputOptions(prompt_logprobs=True)), model)
    both = OutputOptions(prompt_logprobs=True, top_logprobs=3)

    assert model.describe().capabilities.prompt_logprobs
    assert (plain.prompt_logprobs, plain.top_logprobs) == (None, 3)
    assert (alone.prompt_logprobs, alone.top_logprobs) == (0, None)
    resolved = resolve(GenerationConfig(output=both), model)
    assert (resolved.prompt_logprobs, resolved.top_logprobs) == (3, 3)
    assert resolved.effective.output.prompt_logprobs


def test_adapters_are_refused_by_name(model: ServedModel) -> None:
    with pytest.raises(AntiphonError) as caught:
        check_config(GenerationConfig(adapter="models/tiny/adapters/a"), model=model, path="config")

    assert caught.value.reason is ErrorReason.UNSUPPORTED_FEATURE
    assert caught.value.metadata["capability"] == "adapters"
    assert not model.describe().adapters


def test_lifting_what_is_not_there_is_no_fault(model: ServedModel) -> None:
    config = GenerationConfig(
        constraint=Constraint(none=Empty()),
        tool_choice=ToolChoice(mode=ToolChoice.MODE_AUTO),
        output=OutputOptions(prompt_logprobs=False),
        reasoning=ReasoningConfig(),
    )

    assert resolve(config, model).effective.constraint.WhichOneof("kind") == "none"


def test_unset_fields_take_the_checkpoints_values_then_the_contracts(byte_level: TextSide) -> None:
    checkpoint = GenerationConfig(sampling=SamplingParams(temperature=0.25, top_k=20, top_p=0.5))
    model = served_model(byte_level, FakeEngine(), checkpoint_config=checkpoint)

    resolved = resolve(GenerationConfig(sampling=SamplingParams(top_p=1, top_k=0)), model)

    sampling = resolved.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 0, 1)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0, 1, 99)
    assert resolved.priority == 50
    assert resolved.effective.sampling == SamplingParams(
        temperature=0.25,
        top_p=1,
        top_k=0,
        min_p=0,
        presence_penalty=0,
        frequency_penalty=0,
        repetition_penalty=1,
        seed=99,
    )
    assert resolved.effective.stop == StopConditions(
        max_output_tokens=253, min_output_tokens=0, include_stop_string=False, ignore_eos=False
    )


@pytest.mark.parametrize("seed", [0, 42, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_seed_is_a_seed(seed: int, model: ServedModel) -> None:
    resolved = resolve(GenerationConfig(sampling=SamplingParams(seed=seed)), model)

    assert resolved.sampling.seed == resolved.effective.sampling.seed == seed


def test_end_ids_are_the_union_and_can_be_ignored_unlike_stop_ids(byte_level: TextSide) -> None:
    model = served_model(byte_level, FakeEngine(), end_ids=frozenset({5, 7, V}))
    (own,) = byte_level.tokenizer.end_ids
    stop = StopConditions(stop_token_ids=[7, 7])

    heeded = resolve(GenerationConfig(stop=stop), model)
    stop.ignore_eos = True
    ignored = resolve(GenerationConfig(stop=stop), model)

    assert heeded.stop.end_ids == tuple(sorted({5, 7, own}))
    assert ignored.stop.end_ids == ()
    assert heeded.stop.stop_ids == ignored.stop.stop_ids == (7,)


@pytest.mark.parametrize(("asked", "number"), [(None, 1), (1, 1), (4, 4)])
def test_number_of_outputs(asked: int | None, number: int, model: ServedModel) -> None:
    assert resolve_num_outputs(asked, model=model, path="num_outputs") == number


@pytest.mark.parametrize("asked", [0, 5, 2**32 - 1])
def test_number_of_outputs_out_of_range_is_refused(asked: int, model: ServedModel) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve_num_outputs(asked, model=model, path="num_outputs")

    assert [violation.field for violation in caught.value.violations] == ["num_outputs"]


def test_limits_hold_before_the_engine_has_told_its_own(byte_level: TextSide) -> None:
    model = served_model(byte_level, FakeEngine(state=EngineState.STARTING))

    assert (model.vocabulary_size, model.context_tokens) == (1024, 256)
    assert model.describe().limits.context_tokens == 256
    assert model.describe().capabilities.chat


FLOATS = st.floats(width=32) | st.none()


@given(
    sampling=st.builds(
        SamplingParams,
        temperature=FLOATS,
        top_p=FLOATS,
        min_p=FLOATS,
        top_k=st.integers(0, 2**32 - 1) | st.none(),
        repetition_penalty=FLOATS,
    )
)
@settings(max_examples=100, deadline=None)
def test_whatever_is_taken_reaches_the_engine_in_range(
    model: ServedModel, sampling: SamplingParams
) -> None:
    try:
        params = resolve(GenerationConfig(sampling=sampling), model).sampling
    except InvalidRequest:
        return

    assert 0 <= params.temperature <= 1e9
    assert params.temperature == 0 or params.temperature >= 1e-5
    assert 0 < params.top_p <= 1
    assert 0 <= params.min_p <= 1
    assert 0 <= params.top_k < V
    assert 0 < params.repetition_penalty <= 10
