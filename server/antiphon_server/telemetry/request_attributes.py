"""What the span of a request says of it. It alone has the attributes of generative AI."""

from typing import Final

from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry.request_record import (
    AttributeValue,
    Outcome,
    RequestKind,
    RequestRecord,
)
from antiphon_server.times import NS_PER_S

_MAX_INTEGER: Final = 1 << 63
"""What an attribute can't hold: seeds have 64 bits and no sign."""


def request_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """Returns what holds, without content; what is not set or not known is left out."""
    attributes = _own(record)
    if record.kind is not RequestKind.APPENDED_TURN:
        attributes |= _request(record) | _response(record)
    if record.session:
        attributes[names.GEN_AI_CONVERSATION_ID] = record.session.removeprefix("sessions/")
    return attributes


def _request(record: RequestRecord) -> dict[str, AttributeValue]:
    sampling, seed = record.sampling, record.sampling.seed
    values: dict[str, AttributeValue | None] = {
        names.GEN_AI_OPERATION_NAME: names.CHAT if record.is_chat else names.TEXT_COMPLETION,
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
        names.GEN_AI_REQUEST_MODEL: record.model.removeprefix("models/") or None,
        names.GEN_AI_REQUEST_CHOICE_COUNT: record.num_outputs if record.num_outputs > 1 else None,
        names.GEN_AI_REQUEST_MAX_TOKENS: sampling.max_output_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
        names.GEN_AI_REQUEST_TOP_P: sampling.top_p,
        names.GEN_AI_REQUEST_TOP_K: sampling.top_k or None,
        names.GEN_AI_REQUEST_SEED: seed if seed is not None and seed < _MAX_INTEGER else None,
        names.GEN_AI_REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty or None,
        names.GEN_AI_REQUEST_PRESENCE_PENALTY: sampling.presence_penalty or None,
    }
    return _known(values)


def _response(record: RequestRecord) -> dict[str, AttributeValue]:
    if not record.prompt_tokens:
        return {}  # It never came to the engine.
    values: dict[str, AttributeValue | None] = {
        names.GEN_AI_RESPONSE_MODEL: record.model.removeprefix("models/"),
        names.GEN_AI_RESPONSE_ID: record.turn.rpartition("/")[2] or record.request_id or None,
        names.GEN_AI_RESPONSE_FINISH_REASONS: tuple(
            names.FINISH_REASONS.get(reason, reason.lower()) for reason in record.finish_reasons
        )
        or None,
        names.GEN_AI_USAGE_INPUT_TOKENS: record.prompt_tokens,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: record.output_tokens,
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: record.cached_prompt_tokens,
        names.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: record.reasoning_tokens or None,
    }
    return _known(values)


def _own(record: RequestRecord) -> dict[str, AttributeValue]:
    first_ns, times = record.facts.first_token_ns, record.facts.times
    values: dict[str, AttributeValue | None] = {
        names.REQUEST_KIND: record.kind.value,
        names.REQUEST_ID: record.request_id or None,
        names.OUTCOME: record.outcome.value,
        names.FAILURE_REASON: record.failure_reason or None,
        names.ERROR_TYPE: record.failure_reason if record.outcome is Outcome.FAILED else None,
        names.KEPT_FOR: record.kept_for or None,
        names.TENANT: record.tenant or None,
        names.TURN: record.turn or None,
        names.EPOCH: record.epoch or None,
        names.RECOVERED: record.is_recovered or None,
        names.CONSTRAINT: record.constraint or None,
        names.TOOL_CALLS: record.num_tool_calls or None,
        names.TIME_TO_FIRST_TOKEN: (
            (first_ns - record.received_ns) / NS_PER_S if first_ns else None
        ),
        # Such waits may lie in the prefill and in the decoding.
        names.MASK_WAITS: (times.num_mask_waits or None) if times else None,
        names.MASK_WAIT: times.mask_wait_ns / NS_PER_S if times and times.mask_wait_ns else None,
        names.STEPS: record.facts.num_steps or None,
        names.PREEMPTIONS: record.facts.num_preemptions if first_ns else None,
    }
    return _known(values)


def _known(values: dict[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {key: value for key, value in values.items() if value is not None}
