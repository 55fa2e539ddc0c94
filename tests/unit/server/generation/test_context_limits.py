"""Prompt and output against the context: exactly at the limit, and one over."""

import pytest
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.served_model import ServedModel
from antiphon_server.validation import ResolvedConfig, resolve_config
from support.fake_engine import FakeEngine
from support.served_models import TextSide, served_model


@pytest.fixture
def model(byte_level: TextSide) -> ServedModel:
    return served_model(byte_level, FakeEngine())


def resolve(config: GenerationConfig, model: ServedModel, *, prompt_tokens: int) -> ResolvedConfig:
    return resolve_config(
        config,
        model=model,
        prompt_tokens=prompt_tokens,
        num_outputs=1,
        path="config",
        draw_seed=lambda: 99,
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "asked", "budget"),
    [
        (254, 1, 1),
        (254, 2, 2),
        (254, None, 2),
        (255, 1, 1),
        (255, None, 1),
        (100, 156, 156),
        (1, None, 255),
    ],
)
def test_what_fits_the_context_gets_its_budget(
    prompt_tokens: int, asked: int | None, budget: int, model: ServedModel
) -> None:
    config = GenerationConfig(stop=StopConditions(max_output_tokens=asked))

    resolved = resolve(config, model, prompt_tokens=prompt_tokens)

    assert resolved.stop.max_output_tokens == budget
    assert resolved.effective.stop.max_output_tokens == budget
    assert resolved.fills_context == (asked is None)


@pytest.mark.parametrize(
    ("prompt_tokens", "asked"),
    [(254, 3), (255, 2), (256, 1), (256, 2), (256, None), (257, 1), (257, None), (100, 157)],
)
def test_what_does_not_fit_is_refused_with_the_three_numbers(
    prompt_tokens: int, asked: int | None, model: ServedModel
) -> None:
    config = GenerationConfig(stop=StopConditions(max_output_tokens=asked))

    with pytest.raises(AntiphonError) as caught:
        resolve(config, model, prompt_tokens=prompt_tokens)

    numbers = {"limit": "256", "prompt": str(prompt_tokens), "asked": str(asked or 1)}
    assert caught.value.reason is ErrorReason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.metadata == numbers
    for number in numbers.values():
        assert number in caught.value.message


def test_min_tokens_beyond_the_context_are_refused(model: ServedModel) -> None:
    config = GenerationConfig(stop=StopConditions(min_output_tokens=10))

    with pytest.raises(AntiphonError) as caught:
        resolve(config, model, prompt_tokens=250)

    assert caught.value.reason is ErrorReason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.metadata["asked"] == "10"
