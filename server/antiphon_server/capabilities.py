"""What may be asked: the one table behind discovery and refusal.

`Capabilities` says what a model offers. ModelService tells it, and the rules hold requests to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from antiphon.v1 import model_pb2
from antiphon.v1.types_pb2 import GenerationConfig, ToolChoice

from antiphon_engine.api.errors import AntiphonError, ErrorReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What can be asked of a model on this server."""

    chat: bool = False
    """Conversations, which need a chat template."""
    tools: bool = False
    """Tools on offer, tool calls and their results."""
    reasoning: bool = False
    """A reasoning channel and control over it."""
    constraints: frozenset[str] = frozenset()
    """Kinds of Constraint, by their field names."""
    max_top_logprobs: int = 0
    prompt_logprobs: bool = False
    adapters: bool = False

    def to_message(self) -> model_pb2.Capabilities:
        """Returns what ModelService tells."""
        return model_pb2.Capabilities(
            chat=self.chat,
            tools=self.tools,
            reasoning=self.reasoning,
            constraints=sorted(self.constraints),
            max_top_logprobs=self.max_top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )


BUILT: Final = Capabilities(
    chat=True,
    tools=True,
    reasoning=True,
    constraints=frozenset(
        {"json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"}
    ),
    prompt_logprobs=True,
)
"""What this release can do; a model offers what of that it can do itself."""


@dataclass(frozen=True, slots=True)
class _Rule:
    capability: str
    """Its name in refusals; where it is a field of model_pb2.Capabilities, that."""
    field: str
    """Its path below the config."""
    asked: Callable[[GenerationConfig], bool]
    offered: Callable[[Capabilities, GenerationConfig], bool]


_MUST_CALL: Final = (ToolChoice.MODE_REQUIRED,)

_CONFIG_RULES: Final = (
    _Rule(
        "constraints",
        "constraint",
        lambda config: config.constraint.WhichOneof("kind") not in (None, "none"),
        lambda offer, config: config.constraint.WhichOneof("kind") in offer.constraints,
    ),
    _Rule(
        "tools",
        "tool_choice",
        lambda config: (
            config.tool_choice.WhichOneof("choice") == "tool_name"
            or config.tool_choice.mode in _MUST_CALL
        ),
        lambda offer, _config: offer.tools,
    ),
    _Rule(
        "prompt_logprobs",
        "output.prompt_logprobs",
        lambda config: config.output.prompt_logprobs,
        lambda offer, _config: offer.prompt_logprobs,
    ),
    _Rule(
        "reasoning",
        "reasoning.enabled",
        lambda config: config.reasoning.HasField("enabled"),
        lambda offer, _config: offer.reasoning,
    ),
    _Rule(
        "reasoning",
        "reasoning.max_tokens",
        lambda config: config.reasoning.HasField("max_tokens"),
        lambda offer, _config: offer.reasoning,
    ),
    _Rule(
        "adapters",
        "adapter",
        lambda config: bool(config.adapter),
        lambda offer, _config: offer.adapters,
    ),
)


def check_offered(config: GenerationConfig, capabilities: Capabilities, path: str) -> None:
    """Checks that a config asks only for what is offered.

    Raises:
        AntiphonError: UNSUPPORTED_FEATURE; names the capability and the field under `path`.
    """
    for rule in _CONFIG_RULES:
        if rule.asked(config) and not rule.offered(capabilities, config):
            raise unsupported_feature(rule.capability, f"{path}.{rule.field}")


def unsupported_feature(capability: str, field: str) -> AntiphonError:
    """Returns the refusal of a field that asks for a capability which is not there."""
    return AntiphonError(
        ErrorReason.UNSUPPORTED_FEATURE,
        f"{field}: this server or model does not offer {capability}; leave the field out",
        metadata={"capability": capability, "field": field},
    )
