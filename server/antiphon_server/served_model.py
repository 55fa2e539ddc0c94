"""What one engine serves: the model's name, its text side, its engine and its limits."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from antiphon.v1 import model_pb2
from antiphon.v1.types_pb2 import GenerationConfig

from antiphon_engine.api.handle import EngineHandle
from antiphon_server.capabilities import BUILT, Capabilities
from antiphon_server.constraints.checker import ConstraintChecker
from antiphon_server.constraints.reading import ConstraintLimits
from antiphon_server.recent_latencies import RecentLatencies
from antiphon_server.text.prompt_renderer import PromptRenderer
from antiphon_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """How much requests may ask, as the settings say."""

    max_outputs: int
    max_queued_requests: int
    max_message_bytes: int
    max_queued_turns: int
    max_sessions: int
    constraints: ConstraintLimits = field(default_factory=ConstraintLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model with all that the front end needs to serve it."""

    name: str
    """`models/{model}`."""
    tokenizer: Tokenizer
    renderer: PromptRenderer
    engine: EngineHandle
    checker: ConstraintChecker
    """Whoever serves the model closes it."""
    limits: ServedLimits
    architecture: str
    checkpoint_vocabulary_size: int
    """Stands in until the engine has told its own."""
    checkpoint_context_tokens: int
    """Stands in until the engine has told its own."""
    end_ids: frozenset[int]
    """Whatever ends an answer: the union of the checkpoint's two configs and the tokenizer."""
    checkpoint_config: GenerationConfig = field(default_factory=GenerationConfig)
    """The checkpoint's own sampling defaults."""
    latencies: RecentLatencies = field(default_factory=RecentLatencies)
    """Of its latest requests."""

    def __post_init__(self) -> None:
        assert self.name.startswith("models/")

    @property
    def vocabulary_size(self) -> int:
        """Token ids run from 0 to one less; may exceed the tokenizer's."""
        facts = self.engine.facts
        return facts.vocabulary_size if facts else self.checkpoint_vocabulary_size

    @property
    def context_tokens(self) -> int:
        """Prompt and output together."""
        facts = self.engine.facts
        return facts.context_tokens if facts else self.checkpoint_context_tokens

    @property
    def capabilities(self) -> Capabilities:
        """What is built, as far as this model goes along."""
        facts = self.engine.facts
        return replace(
            BUILT,
            chat=BUILT.chat and self.renderer.chat,
            tools=BUILT.tools and self.renderer.habits.tools is not None,
            reasoning=BUILT.reasoning and self.renderer.habits.reasoning is not None,
            max_top_logprobs=facts.max_top_logprobs if facts else 0,
        )

    def describe(self) -> model_pb2.Model:
        """Returns what ModelService tells."""
        facts = self.engine.facts
        return model_pb2.Model(
            name=self.name,
            architecture=facts.architecture if facts else self.architecture,
            device=facts.device if facts else "",
            dtype=facts.dtype if facts else "",
            quantization=facts.quantization if facts else "",
            kv_cache_dtype=facts.kv_cache_dtype if facts else "",
            kernels=facts.kernels if facts else {},
            capabilities=self.capabilities.to_message(),
            limits=model_pb2.Limits(
                context_tokens=self.context_tokens,
                vocabulary_size=self.vocabulary_size,
                max_outputs=self.limits.max_outputs,
                max_queued_requests=self.limits.max_queued_requests,
                max_message_bytes=self.limits.max_message_bytes,
                kv_cache_tokens=facts.kv_cache_tokens if facts else 0,
                kv_block_tokens=facts.block_tokens if facts else 0,
                max_queued_turns=self.limits.max_queued_turns,
                max_sessions=self.limits.max_sessions,
            ),
        )


def union_of_end_ids(*sources: Iterable[int]) -> frozenset[int]:
    """Returns every id that one of the sources takes for an end."""
    return frozenset(token_id for source in sources for token_id in source)
