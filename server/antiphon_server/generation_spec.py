"""What a generation is asked for, how the engine is told, and what reads its answer."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from antiphon_engine.api import messages
from antiphon_engine.api.grammar import Thinking
from antiphon_server.access.quotas import Place
from antiphon_server.constraints.request import CheckedConstraint
from antiphon_server.convert import pack_token_ids
from antiphon_server.endurance import Endurance
from antiphon_server.generation_output import NewTokens, OutputProgress, OutputRecord
from antiphon_server.output_calls import OutputCalls
from antiphon_server.retention import RetentionHint
from antiphon_server.served_model import ServedModel
from antiphon_server.text.output_channels import ChannelSpec
from antiphon_server.text.output_text import OutputText, TextSpec
from antiphon_server.validation import ResolvedConfig

_PROMPT_TAIL_TOKENS: Final = 64
"""As much of the prompt as can decide how the output's first characters decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """What to generate. Instants are on the generator's clock."""

    prompt_ids: Sequence[int]
    config: ResolvedConfig
    num_outputs: int = 1
    scope: messages.Scope = field(default_factory=messages.Scope)
    """Of the caller: its tenant by name, and what it chose itself."""
    received_ns: int
    deadline_ns: int | None = None
    """When the request fails with TIMEOUT unless it has ended."""
    traceparent: str = ""
    tracestate: str = ""
    place: Place | None = None
    """What a turn holds of its tenant's quotas; None: the request takes its own."""
    retention: RetentionHint = field(default_factory=RetentionHint)
    resumed: NewTokens = field(default_factory=NewTokens)
    """What was generated before of the one output, which goes on behind it; told as if new. Where
    it has an end, the output is whole, and no engine hears of it."""
    constraint: CheckedConstraint | None = None
    """What every output that ends by itself is like."""
    endurance: Endurance | None = None
    """None: it fails when its engine does."""
    channels: ChannelSpec = field(default_factory=ChannelSpec)
    """What its outputs may consist of."""
    thinking: Thinking | None = None
    """What the engine must know of an output that begins with thinking."""
    call_scope: str = ""
    """What the ids of its tool calls are made of; see `tool_call_id`."""


def to_request(spec: GenerationSpec, scope: messages.Scope) -> messages.GenerationRequest:
    """Returns the engine's request, in a scope of the engine's."""
    config = spec.config
    assert spec.num_outputs == 1 or not spec.resumed.token_ids
    request = messages.GenerationRequest(
        prompt=pack_token_ids(spec.prompt_ids),
        sampling=config.sampling,
        stop=config.stop,
        num_outputs=spec.num_outputs,
        top_logprobs=config.top_logprobs,
        prompt_logprobs=config.prompt_logprobs,
        scope=scope,
        priority=config.priority,
        traceparent=spec.traceparent,
        tracestate=spec.tracestate,
        session=spec.retention.session,
        retention_priority=spec.retention.priority,
        retention_us=spec.retention.duration_us,
        grammar=spec.constraint.grammar if spec.constraint else None,
        thinking=spec.thinking,
    )
    return request.resumed_behind(array("i", spec.resumed.token_ids))


def text_spec(spec: GenerationSpec) -> TextSpec:
    """Returns how outputs' tokens become text."""
    config = spec.config
    return TextSpec(
        prompt_tail=spec.prompt_ids[-_PROMPT_TAIL_TOKENS:],
        is_exact=spec.constraint is not None,
        stop_strings=config.stop_strings,
        include_stop_string=config.include_stop_string,
        show_special_tokens=config.show_special_tokens,
        channels=spec.channels,
    )


def new_progress(record: OutputRecord, spec: GenerationSpec, model: ServedModel) -> OutputProgress:
    """Returns what turns an output's tokens into text."""
    return OutputProgress(
        record,
        text=OutputText(model.tokenizer, text_spec(spec)),
        calls=OutputCalls(spec.call_scope, record.index),
        tokenizer=model.tokenizer,
        config=spec.config,
    )


def leave(spec: GenerationSpec, place: Place, used_tokens: int) -> None:
    """Settles what was set aside, and gives a place back that is the request's own."""
    place.settle(used_tokens)
    if spec.place is None:
        place.release()
