"""A request's config over a session's defaults."""

from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    GenerationConfig,
    JsonObject,
    OutputOptions,
    SamplingParams,
    StopConditions,
    ToolChoice,
)
from google.protobuf.duration_pb2 import Duration

from antiphon_server.validation import merge_config


def test_present_scalars_replace_and_absent_ones_stay() -> None:
    defaults = GenerationConfig(
        sampling=SamplingParams(temperature=0.5, top_k=10, seed=3), priority=80
    )
    overrides = GenerationConfig(sampling=SamplingParams(temperature=0, seed=0), priority=0)

    merged = merge_config(defaults, overrides)

    assert merged == GenerationConfig(
        sampling=SamplingParams(temperature=0, top_k=10, seed=0), priority=0
    )


def test_lists_and_maps_replace_whole_where_they_are_not_empty() -> None:
    defaults = GenerationConfig(
        sampling=SamplingParams(logit_bias={1: 2.0, 3: 4.0}),
        stop=StopConditions(stop_strings=["a", "b"], stop_token_ids=[1, 2]),
    )
    overrides = GenerationConfig(
        sampling=SamplingParams(logit_bias={5: 6.0}), stop=StopConditions(stop_strings=["c"])
    )

    merged = merge_config(defaults, overrides)

    assert dict(merged.sampling.logit_bias) == {5: 6.0}
    assert list(merged.stop.stop_strings) == ["c"]
    assert list(merged.stop.stop_token_ids) == [1, 2]


def test_constraints_tool_choices_and_durations_replace_whole() -> None:
    defaults = GenerationConfig(
        constraint=Constraint(json_object=JsonObject(), compact_json=True),
        tool_choice=ToolChoice(tool_name="clock"),
        stop=StopConditions(time_limit=Duration(seconds=3, nanos=500)),
    )
    overrides = GenerationConfig(
        constraint=Constraint(choice=Choice(options=["x"])),
        tool_choice=ToolChoice(mode=ToolChoice.MODE_NONE),
        stop=StopConditions(time_limit=Duration(seconds=1)),
    )

    assert merge_config(defaults, overrides) == overrides


def test_neither_of_the_two_is_changed() -> None:
    defaults = GenerationConfig(stop=StopConditions(stop_strings=["a"]))
    overrides = GenerationConfig(stop=StopConditions(stop_strings=["b"]))

    merge_config(defaults, overrides).stop.stop_strings.append("c")

    assert list(defaults.stop.stop_strings) == ["a"]
    assert list(overrides.stop.stop_strings) == ["b"]


def test_every_optional_field_of_a_group_can_be_overridden() -> None:
    defaults = GenerationConfig(output=OutputOptions(top_logprobs=3, token_ids=True))
    overrides = GenerationConfig(output=OutputOptions(top_logprobs=0, token_ids=False))

    assert merge_config(defaults, overrides) == overrides
