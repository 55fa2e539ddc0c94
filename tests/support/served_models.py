"""A served model made of a tiny tokenizer and any engine."""

from dataclasses import dataclass
from pathlib import Path

from antiphon.v1.types_pb2 import GenerationConfig

from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.api.handle import EngineHandle
from antiphon_server.constraints.check_messages import CheckerStart
from antiphon_server.constraints.checker import CheckerLimits, ConstraintChecker
from antiphon_server.constraints.checker_link import CheckerLink
from antiphon_server.served_model import ServedLimits, ServedModel
from antiphon_server.text.chat_template import ChatTemplate
from antiphon_server.text.prompt_renderer import PromptRenderer
from antiphon_server.text.tokenizer import Tokenizer

MODEL_NAME = "models/tiny"

LIMITS = ServedLimits(
    max_outputs=4,
    max_queued_requests=64,
    max_message_bytes=16 << 20,
    max_queued_turns=4,
    max_sessions=100,
)


@dataclass(frozen=True, slots=True)
class TextSide:
    """A tokenizer and the renderer over it; loading them takes a while."""

    tokenizer: Tokenizer
    renderer: PromptRenderer


def load_text_side(directory: Path) -> TextSide:
    """Loads the tokenizer directory that `support.tiny_tokenizers` has written."""
    tokenizer = Tokenizer.load(directory)
    return TextSide(tokenizer, PromptRenderer(tokenizer, ChatTemplate.load(directory)))


def served_model(
    text: TextSide,
    engine: EngineHandle,
    *,
    limits: ServedLimits = LIMITS,
    checkpoint_config: GenerationConfig | None = None,
    end_ids: frozenset[int] = frozenset(),
    checker: ConstraintChecker | None = None,
) -> ServedModel:
    """Returns a model that ends on the tokenizer's end ids and those given."""
    return ServedModel(
        name=MODEL_NAME,
        tokenizer=text.tokenizer,
        renderer=text.renderer,
        engine=engine,
        checker=checker or no_checker(),
        limits=limits,
        architecture="FakeForCausalLM",
        checkpoint_vocabulary_size=1024,
        checkpoint_context_tokens=256,
        end_ids=text.tokenizer.end_ids | end_ids,
        checkpoint_config=checkpoint_config or GenerationConfig(),
    )


def no_checker() -> ConstraintChecker:
    """Returns a checker of constraints for models that nobody asks to keep to any."""
    start = CheckerStart(checkpoint="", vocabulary_size=0)
    return ConstraintChecker(
        {name: CheckerLink(lambda: start, command=["false"]) for name in GrammarBackend},
        CheckerLimits(),
    )
