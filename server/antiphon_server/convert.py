"""Between the contract's messages and the engine's."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    PositionLogprobs,
    PromptPart,
    SamplingParams,
    TokenLogprob,
)

from antiphon_engine.api import messages
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_server.validation_sampling import RANGES

_MAX_UINT32: Final = 2**32 - 1
FINISH_REASONS: Final[Mapping[messages.FinishReason, "FinishReason.ValueType"]] = {
    messages.FinishReason.END_ID: FinishReason.FINISH_REASON_STOP,
    messages.FinishReason.STOP_ID: FinishReason.FINISH_REASON_STOP_SEQUENCE,
    messages.FinishReason.MAX_OUTPUT_TOKENS: FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS,
    messages.FinishReason.CONTEXT_FULL: FinishReason.FINISH_REASON_CONTEXT_FULL,
    messages.FinishReason.CANCELLED: FinishReason.FINISH_REASON_CANCELLED,
    messages.FinishReason.FINISHED_BY_CALLER: FinishReason.FINISH_REASON_STOP_SEQUENCE,
}

PROMPT_PART_TOKENS: Final = 200_000
"""Token ids in a PromptPart: at five bytes each at most, they stay below 1 MiB."""


class TokenBytes(Protocol):
    """Whatever knows the bytes of a token."""

    def token_bytes(self, token_id: int) -> bytes:
        """Returns them; empty for ids beyond the tokenizer."""


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Returns token ids as the engine takes them: int32, little-endian."""
    return array("i", token_ids).tobytes()


def to_position_logprobs(
    token_id: int, logprobs: messages.TokenLogprobs, tokenizer: TokenBytes
) -> PositionLogprobs:
    """Returns the log-probabilities of the position where `token_id` stands."""
    top_ids, top_values = array("i", logprobs.top_ids), array("f", logprobs.top_logprobs)
    return PositionLogprobs(
        chosen=_token_logprob(token_id, logprobs.chosen, tokenizer),
        top=[_token_logprob(i, v, tokenizer) for i, v in zip(top_ids, top_values, strict=True)],
    )


def to_prompt_logprobs(
    token_ids: Sequence[int], logprobs: PromptLogprobs, tokenizer: TokenBytes
) -> list[PositionLogprobs]:
    """Returns the log-probabilities of a prompt's positions where `token_ids` stand."""
    chosen = array("f", logprobs.chosen)
    top_ids, top_values = array("i", logprobs.top_ids), array("f", logprobs.top_logprobs)
    entries = []
    for index, (token_id, value) in enumerate(zip(token_ids, chosen, strict=True)):
        top = range(index * logprobs.num_top, (index + 1) * logprobs.num_top)
        entries.append(
            PositionLogprobs(
                chosen=_token_logprob(token_id, value, tokenizer),
                top=[_token_logprob(top_ids[i], top_values[i], tokenizer) for i in top],
            )
        )
    return entries


def to_prompt_parts(prompt_ids: Sequence[int]) -> Iterator[PromptPart]:
    """Yields a prompt's token ids in pieces that fit a message."""
    for first in range(0, len(prompt_ids), PROMPT_PART_TOKENS):
        yield PromptPart(
            first_position=first, token_ids=prompt_ids[first : first + PROMPT_PART_TOKENS]
        )


def to_checkpoint_config(sampling_defaults: Mapping[str, float]) -> GenerationConfig:
    """Returns a checkpoint's sampling defaults, named as in its generation config.

    Raises:
        StartupError: one of them is out of the contract's range.
    """
    sampling = SamplingParams()
    for name, value in sampling_defaults.items():
        if name == "top_k":
            # Some checkpoints write -1 where all tokens are kept.
            sampling.top_k = min(max(0, int(value)), _MAX_UINT32)
        elif name in RANGES:
            if value not in RANGES[name]:
                raise StartupError(
                    f"the checkpoint's generation_config.json sets {name} to {value:g}; "
                    f"it must be in {RANGES[name]}"
                )
            setattr(sampling, name, value)
    return GenerationConfig(sampling=sampling)


def _token_logprob(token_id: int, logprob: float, tokenizer: TokenBytes) -> TokenLogprob:
    # Rounding can lift the logarithm of a sure thing a little above zero.
    return TokenLogprob(
        token_id=token_id, token=tokenizer.token_bytes(token_id), logprob=min(logprob, 0.0)
    )
