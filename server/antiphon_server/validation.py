"""From what a request says to what is in force: merged, checked and resolved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import Constraint, GenerationConfig, OutputOptions, ToolChoice
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_server.capabilities import check_offered
from antiphon_server.constraints.reading import check_constraint
from antiphon_server.served_model import ServedModel
from antiphon_server.times import to_s
from antiphon_server.validation_fields import Range, Violations
from antiphon_server.validation_items import check_items, check_items_offered, check_prompt
from antiphon_server.validation_sampling import (
    check_sampling,
    effective_sampling,
    resolve_sampling,
)
from antiphon_server.validation_stop import (
    Room,
    check_room,
    check_stop,
    effective_stop,
    resolve_stop,
)
from antiphon_server.validation_tools import (
    check_tool_choice,
    check_tools,
    is_constrained,
    must_call,
    reads_calls,
)
from antiphon_server.validation_unknown import check_unknown_fields

__all__ = [
    "ResolvedConfig",
    "check_config",
    "check_items",
    "check_items_offered",
    "check_prompt",
    "check_tool_choice",
    "check_tools",
    "check_unknown_fields",
    "is_constrained",
    "merge_config",
    "must_call",
    "reads_calls",
    "resolve_config",
    "resolve_num_outputs",
]

_DEFAULT_PRIORITY: Final = 50
_PRIORITIES: Final = Range(0, 100)
_REPLACED_WHOLE: Final = frozenset({Constraint, ToolChoice, Duration})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """All that steers one generation, every value known and checked."""

    sampling: SamplingParams
    stop: StopParams
    fills_context: bool
    """Whether the output may go on to the end of the context, since no budget was asked for."""
    stop_strings: tuple[str, ...] = ()
    include_stop_string: bool = False
    top_logprobs: int | None = None
    """None: no log-probabilities; 0: the chosen token's only."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    want_token_ids: bool = False
    want_prompt_token_ids: bool = False
    show_special_tokens: bool = False
    time_limit_s: float | None = None
    """From receipt."""
    priority: int = _DEFAULT_PRIORITY
    effective: GenerationConfig
    """The same as the contract's message, for callers."""


def merge_config(defaults: GenerationConfig, overrides: GenerationConfig) -> GenerationConfig:
    """Returns the defaults with what the overrides set in their place.

    A present scalar, a non-empty list or map, a set Constraint and a set ToolChoice each replace
    the default whole.
    """
    merged = GenerationConfig()
    merged.CopyFrom(defaults)
    _merge_into(merged, overrides)
    return merged


def check_config(config: GenerationConfig, *, model: ServedModel, path: str) -> None:
    """Checks all of a config that does not depend on the prompt.

    Raises:
        InvalidRequest: names the fields below `path`.
        AntiphonError: UNSUPPORTED_FEATURE; names the capability. CONSTRAINT_TOO_COMPLEX.
    """
    vocabulary_size = model.vocabulary_size
    violations = Violations()
    check_sampling(
        config.sampling,
        vocabulary_size=vocabulary_size,
        path=f"{path}.sampling",
        violations=violations,
    )
    check_stop(
        config.stop, vocabulary_size=vocabulary_size, path=f"{path}.stop", violations=violations
    )
    _check_kinds(config, path, violations)
    _check_constraint(config, model, path, violations)
    if config.HasField("priority"):
        violations.check_range(f"{path}.priority", config.priority, _PRIORITIES)
    most = model.capabilities.max_top_logprobs
    if config.output.top_logprobs > most:
        violations.add(
            f"{path}.output.top_logprobs",
            f"must be at most {most} for this model, is {config.output.top_logprobs}",
        )
    violations.raise_if_any()
    check_offered(config, model.capabilities, path)


def resolve_num_outputs(asked: int | None, *, model: ServedModel, path: str) -> int:
    """Returns how many outputs to make; one where none were asked for.

    Raises:
        InvalidRequest: names `path`.
    """
    if asked is None:
        return 1
    violations = Violations()
    violations.check_range(path, asked, Range(1, model.limits.max_outputs))
    violations.raise_if_any()
    return asked


def resolve_config(  # noqa: PLR0913 - the shape that the parts of the front end agreed on
    config: GenerationConfig,
    *,
    model: ServedModel,
    prompt_tokens: int,
    num_outputs: int,
    path: str,
    draw_seed: Callable[[], int],
) -> ResolvedConfig:
    """Returns what is in force: the config over the checkpoint's own over the contract's values.

    Raises:
        InvalidRequest: names the fields below `path`.
        AntiphonError: UNSUPPORTED_FEATURE, or CONTEXT_LENGTH_EXCEEDED where prompt and output don't
            fit together.
    """
    assert 1 <= num_outputs <= model.limits.max_outputs
    check_config(config, model=model, path=path)
    merged = merge_config(model.checkpoint_config, config)
    vocabulary_size = model.vocabulary_size
    room = Room(context_tokens=model.context_tokens, prompt_tokens=prompt_tokens)
    check_room(merged.stop, room)
    end_ids = [token_id for token_id in model.end_ids if token_id < vocabulary_size]
    sampling = resolve_sampling(
        merged.sampling, vocabulary_size=vocabulary_size, drawn_seed=draw_seed()
    )
    stop = resolve_stop(merged.stop, room=room, end_ids=end_ids)
    output = merged.output
    limit = merged.stop.time_limit if merged.stop.HasField("time_limit") else None
    priority = merged.priority if merged.HasField("priority") else _DEFAULT_PRIORITY
    return ResolvedConfig(
        sampling=sampling,
        stop=stop,
        fills_context=not merged.stop.HasField("max_output_tokens"),
        stop_strings=tuple(merged.stop.stop_strings),
        include_stop_string=merged.stop.include_stop_string,
        top_logprobs=output.top_logprobs if output.HasField("top_logprobs") else None,
        prompt_logprobs=output.top_logprobs if output.prompt_logprobs else None,
        want_token_ids=output.token_ids,
        want_prompt_token_ids=output.prompt_token_ids,
        show_special_tokens=output.special_tokens,
        time_limit_s=to_s(limit) if limit else None,
        priority=priority,
        effective=_effective(merged, sampling, stop, priority),
    )


def _merge_into(target: Message, source: Message) -> None:
    for field, value in source.ListFields():
        if field.is_repeated:
            target.ClearField(field.name)
            getattr(target, field.name).MergeFrom(value)
        elif field.type != FieldDescriptor.TYPE_MESSAGE:
            setattr(target, field.name, value)
        elif type(value) in _REPLACED_WHOLE:
            getattr(target, field.name).CopyFrom(value)
        else:
            _merge_into(getattr(target, field.name), value)


def _check_kinds(config: GenerationConfig, path: str, violations: Violations) -> None:
    """Adds choices that were begun and not made."""
    choice = config.tool_choice
    if config.HasField("tool_choice"):
        if choice.WhichOneof("choice") is None:
            violations.add(f"{path}.tool_choice", "one of mode and tool_name must be set")
        elif choice.mode not in ToolChoice.Mode.values():
            violations.add(f"{path}.tool_choice.mode", f"must be a known mode, is {choice.mode}")
        elif choice.WhichOneof("choice") == "tool_name" and not choice.tool_name:
            violations.add(f"{path}.tool_choice.tool_name", "must not be empty")
        if choice.WhichOneof("choice") == "tool_name" and choice.parallel_calls:
            violations.add(
                f"{path}.tool_choice.parallel_calls",
                "does not go with tool_name, which asks for exactly one call",
            )


def _check_constraint(
    config: GenerationConfig, model: ServedModel, path: str, violations: Violations
) -> None:
    """Adds what is wrong with the constraint, if any, and with what stands beside it."""
    if not config.HasField("constraint"):
        return
    limits = model.limits.constraints
    check_constraint(
        config.constraint, limits=limits, path=f"{path}.constraint", violations=violations
    )
    if config.stop.ignore_eos and config.constraint.WhichOneof("kind") != "none":
        # The end of a constrained output is told by an end-of-sequence token alone.
        violations.add(f"{path}.stop.ignore_eos", "does not go with a constraint")


def _effective(
    merged: GenerationConfig, sampling: SamplingParams, stop: StopParams, priority: int
) -> GenerationConfig:
    output = merged.output
    return GenerationConfig(
        sampling=effective_sampling(sampling, merged.sampling),
        stop=effective_stop(stop, merged.stop),
        constraint=merged.constraint if merged.HasField("constraint") else None,
        tool_choice=merged.tool_choice if merged.HasField("tool_choice") else None,
        reasoning=merged.reasoning if merged.HasField("reasoning") else None,
        output=OutputOptions(
            top_logprobs=output.top_logprobs if output.HasField("top_logprobs") else None,
            token_ids=output.token_ids,
            prompt_token_ids=output.prompt_token_ids,
            prompt_logprobs=output.prompt_logprobs,
            special_tokens=output.special_tokens,
        ),
        priority=priority,
    )
