"""What an output may consist of: worked out before it begins, for its reader and for the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.v1.types_pb2 import ReasoningConfig

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.grammar import Thinking
from antiphon_server.served_model import ServedModel
from antiphon_server.text.output_channels import ChannelSpec, ThinkingStart


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputNeeds:
    """What a request asks of its outputs beside their text."""

    reasoning: ReasoningConfig
    reads_calls: bool = False
    """Whether the model may call tools."""
    must_call: bool = False
    """Whether an answer is calls and nothing else."""
    is_constrained: bool = False
    """Whether the engine holds the answer to a grammar."""
    start: ThinkingStart | None = None
    """Whether outputs begin with thinking; None: as the prompt's end shows."""
    path: str
    """What stands before the config's fields where one is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """How an output is read."""

    channels: ChannelSpec = field(default_factory=ChannelSpec)
    thinking: Thinking | None = None
    """What the engine must know; None: it may take all of the output for answer."""
    opening_ids: Sequence[int] = ()
    """What the prompt gets behind it, so that it ends where the thinking begins."""


def plan_output(model: ServedModel, prompt_ids: Sequence[int], needs: OutputNeeds) -> OutputPlan:
    """Returns how outputs behind a rendered conversation are read.

    Raises:
        AntiphonError: UNSUPPORTED_FEATURE; nobody knows whether the model would think.
    """
    habits, renderer = model.renderer.habits, model.renderer
    tools = habits.tools if needs.reads_calls else None
    if habits.reasoning is None:
        return OutputPlan(channels=ChannelSpec(tools=tools, calls_only=needs.must_call))
    asked = needs.reasoning
    start = needs.start or renderer.thinking_start(prompt_ids)
    has_budget = asked.HasField("max_tokens")
    opening_ids: Sequence[int] = ()
    if start is ThinkingStart.BY_MODEL and (needs.is_constrained or has_budget):
        will_think = asked.enabled if asked.HasField("enabled") else habits.thinks_by_default
        if has_budget and not will_think:
            raise _no_budget(f"{needs.path}.reasoning.max_tokens")
        start = ThinkingStart.OPENED if will_think else ThinkingStart.NEVER
        opening_ids = renderer.opening_of_thinking() if will_think else ()
    thinking = None
    if start is ThinkingStart.OPENED and (needs.is_constrained or has_budget):
        thinking = Thinking(
            end_text=habits.reasoning.closer,
            max_tokens=asked.max_tokens if has_budget else None,
        )
    return OutputPlan(
        channels=ChannelSpec(
            thinking=start,
            reasoning=habits.reasoning,
            tools=tools,
            calls_only=needs.must_call,
        ),
        thinking=thinking,
        opening_ids=opening_ids,
    )


def _no_budget(path: str) -> AntiphonError:
    return AntiphonError(
        ErrorReason.UNSUPPORTED_FEATURE,
        f"{path}: the model's chat template does not show whether it will think, so its thinking "
        "can't be bounded; set reasoning.enabled where the template has a switch, or leave it out",
        metadata={"capability": "reasoning", "field": path},
    )
