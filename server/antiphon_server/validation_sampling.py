"""How tokens are drawn: ranges and defaults."""

from itertools import islice
from typing import Final

from antiphon.v1 import types_pb2

from antiphon_engine.api.messages import SamplingParams
from antiphon_server.validation_fields import Range, Violations

RANGES: Final = {
    "temperature": Range(0, 1e9),
    "top_p": Range(0, 1, lowest_is_open=True),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 10, lowest_is_open=True),
}
BIAS_RANGE: Final = Range(-100, 100)
MAX_BIASES: Final = 1024

_GREEDY_BELOW: Final = 1e-5
"""Dividing logits by less would overflow."""


def check_sampling(
    sampling: types_pb2.SamplingParams, *, vocabulary_size: int, path: str, violations: Violations
) -> None:
    """Adds what is wrong with the fields that are set."""
    for name, allowed in RANGES.items():
        if sampling.HasField(name):  # type: ignore[arg-type]  # The stub wants a literal.
            violations.check_range(f"{path}.{name}", getattr(sampling, name), allowed)
    violations.check_count(f"{path}.logit_bias", len(sampling.logit_bias), MAX_BIASES)
    for token_id, bias in islice(sampling.logit_bias.items(), MAX_BIASES):
        field = f"{path}.logit_bias[{token_id}]"
        violations.check_token_id(field, token_id, vocabulary_size)
        violations.check_range(field, bias, BIAS_RANGE)


def resolve_sampling(
    sampling: types_pb2.SamplingParams, *, vocabulary_size: int, drawn_seed: int
) -> SamplingParams:
    """Returns what the engine gets: unset fields take the contract's values.

    Args:
        sampling: Checked.
        vocabulary_size: The model's.
        drawn_seed: In force where the caller has set none.
    """

    def value(name: str, default: float) -> float:
        is_set = sampling.HasField(name)  # type: ignore[arg-type]  # The stub wants a literal.
        return float(getattr(sampling, name)) if is_set else default

    temperature = value("temperature", 1.0)
    return SamplingParams(
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        # To keep as many tokens as there are is to keep all.
        top_k=sampling.top_k if sampling.top_k < vocabulary_size else 0,
        top_p=value("top_p", 1.0),
        min_p=value("min_p", 0.0),
        presence_penalty=value("presence_penalty", 0.0),
        frequency_penalty=value("frequency_penalty", 0.0),
        repetition_penalty=value("repetition_penalty", 1.0),
        logit_bias=dict(sampling.logit_bias),
        seed=sampling.seed if sampling.HasField("seed") else drawn_seed,
    )


def effective_sampling(
    params: SamplingParams, asked: types_pb2.SamplingParams
) -> types_pb2.SamplingParams:
    """Returns the contract's message with every value that is in force."""
    return types_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=asked.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.seed,
        logit_bias=params.logit_bias,
    )
