"""What the engine itself checks of a request, so that no value of the front end's can break it."""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.messages import (
    CloseSession,
    ForkSession,
    GenerationRequest,
    RewindSession,
    SamplingParams,
)

MAX_BIASES: Final = 1024
MAX_STOP_IDS: Final = 1024
"""Of stop ids and end ids together."""

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_MAX_UINT64 = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a request is refused."""

    reason: ErrorReason
    message: str
    metadata: dict[str, str] = field(default_factory=dict)


def find_fault(request: GenerationRequest, *, vocabulary_size: int) -> Fault | None:
    """Returns the first fault of a request, or None."""
    if request.scope.adapter:
        return Fault(
            reason=ErrorReason.UNSUPPORTED_FEATURE,
            message=f"The engine has no adapter {request.scope.adapter!r}.",
        )
    message = (
        _prompt_fault(request, vocabulary_size)
        or _resumption_fault(request)
        or _limits_fault(request)
        or _ids_fault(request, vocabulary_size)
        or _guidance_fault(request, vocabulary_size)
        or _sampling_fault(request.sampling)
    )
    return Fault(reason=ErrorReason.INVALID_FIELD, message=message) if message else None


def is_sound(hint: CloseSession | ForkSession | RewindSession) -> bool:
    """Returns whether a hint names sessions and its values are in range."""
    if not 0 < hint.session <= _MAX_UINT64:
        return False
    match hint:
        case ForkSession():
            return 0 < hint.new_session <= _MAX_UINT64 and hint.new_session != hint.session
        case RewindSession():
            return 0 <= hint.num_tokens <= _MAX_INT32
        case CloseSession():
            return True


def _prompt_fault(request: GenerationRequest, vocabulary_size: int) -> str:
    if not request.prompt or len(request.prompt) % 4:
        return f"The prompt has {len(request.prompt)} bytes; it takes 4 a token, and one token."
    prompt = np.frombuffer(request.prompt, np.int32)
    outside = (prompt < 0) | (prompt >= vocabulary_size)
    if outside.any():
        token_id = int(prompt[outside.argmax()])
        return f"Prompt token {token_id} is outside the vocabulary of {vocabulary_size}."
    return ""


def _resumption_fault(request: GenerationRequest) -> str:
    num_resumed = request.num_resumed_tokens
    most = min(len(request.prompt) // 4, request.stop.max_output_tokens) - 1
    if num_resumed and not 0 < num_resumed <= most:
        return f"num_resumed_tokens is {num_resumed}; prompt and output have room for {most}."
    if num_resumed and request.num_outputs != 1:
        return f"num_outputs is {request.num_outputs}; only a single output can be taken up again."
    return ""


def _limits_fault(request: GenerationRequest) -> str:
    stop = request.stop
    if request.num_outputs < 1:
        return f"num_outputs is {request.num_outputs}; it must be at least 1."
    if not 1 <= stop.max_output_tokens <= _MAX_INT32:
        return f"max_output_tokens is {stop.max_output_tokens}; it must be at least 1."
    if not 0 <= stop.min_output_tokens <= stop.max_output_tokens:
        return f"min_output_tokens is {stop.min_output_tokens}; at most {stop.max_output_tokens}."
    if not 0 <= request.priority <= 100:
        return f"priority is {request.priority}; it must be from 0 to 100."
    return _numbers_fault(request)


def _numbers_fault(request: GenerationRequest) -> str:
    for name, value, largest in (
        ("prompt_logprobs", request.prompt_logprobs or 0, _MAX_INT32),
        ("num_told_positions", request.num_told_positions, _MAX_INT32),
        ("session", request.session, _MAX_UINT64),
        ("retention_priority", request.retention_priority, 100),
        ("retention_us", request.retention_us, _MAX_INT64),
    ):
        if not 0 <= value <= largest:
            return f"{name} is {value}; it must be from 0 to {largest}."
    return ""


def _ids_fault(request: GenerationRequest, vocabulary_size: int) -> str:
    num_ends = len(request.stop.stop_ids) + len(request.stop.end_ids)
    if num_ends > MAX_STOP_IDS:
        return f"stop_ids and end_ids have {num_ends} tokens; at most {MAX_STOP_IDS}."
    if len(request.sampling.logit_bias) > MAX_BIASES:
        return f"logit_bias has {len(request.sampling.logit_bias)} tokens; at most {MAX_BIASES}."
    for name, token_ids in (
        ("stop_ids", request.stop.stop_ids),
        ("logit_bias", request.sampling.logit_bias),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocabulary_size:
                return f"{name} has {token_id}, outside the vocabulary of {vocabulary_size}."
    if any(token_id < 0 for token_id in request.stop.end_ids):
        return "end_ids has a negative id."
    return ""


def _guidance_fault(request: GenerationRequest, vocabulary_size: int) -> str:
    thinking = request.thinking
    if request.grammar is not None and not any(
        token_id < vocabulary_size for token_id in request.stop.end_ids
    ):
        return "end_ids has no token of the model's: what satisfies a grammar has to end."
    if thinking is not None and not thinking.end_text:
        return "thinking.end_text is empty; reasoning ends with a marker."
    if thinking is not None and thinking.max_tokens is not None and thinking.max_tokens < 0:
        return f"thinking.max_tokens is {thinking.max_tokens}; it must be at least 0."
    return ""


def _sampling_fault(sampling: SamplingParams) -> str:
    numbers = {
        "temperature": (sampling.temperature, sampling.temperature >= 0),
        "top_k": (sampling.top_k, sampling.top_k >= 0),
        "top_p": (sampling.top_p, 0 < sampling.top_p <= 1),
        "min_p": (sampling.min_p, 0 <= sampling.min_p <= 1),
        "presence_penalty": (sampling.presence_penalty, True),
        "frequency_penalty": (sampling.frequency_penalty, True),
        "repetition_penalty": (sampling.repetition_penalty, sampling.repetition_penalty > 0),
        "seed": (sampling.seed, 0 <= sampling.seed < 2**64),
    }
    for name, (value, in_range) in numbers.items():
        if not (in_range and math.isfinite(value)):
            return f"{name} is {value}, which is out of range."
    if not all(math.isfinite(bias) for bias in sampling.logit_bias.values()):
        return "logit_bias has a value that is not finite."
    return ""
