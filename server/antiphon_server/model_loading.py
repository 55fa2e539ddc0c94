"""What a model's files and the settings make of it: its name, its text side, its defaults."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from antiphon.v1.types_pb2 import GenerationConfig

from antiphon_engine.api.checkpoint import CheckpointInfo
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.api.handle import EngineHandle
from antiphon_server.config import Config, ConstraintsConfig
from antiphon_server.constraints.check_messages import CheckerStart, WorkerLimits
from antiphon_server.constraints.checker import CheckerLimits, ConstraintChecker
from antiphon_server.constraints.checker_link import CheckerLink
from antiphon_server.constraints.reading import ConstraintLimits
from antiphon_server.convert import to_checkpoint_config
from antiphon_server.served_model import ServedLimits, ServedModel, union_of_end_ids
from antiphon_server.text.chat_template import ChatTemplate
from antiphon_server.text.prompt_renderer import PromptRenderer
from antiphon_server.text.tokenizer import Tokenizer

_DEMO_NAME: Final = "qwen2.5-coder-0.5b-instruct"
_MAX_NAME_CHARS: Final = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """What of a model is known before its engine runs."""

    name: str
    """`models/{model}`."""
    info: CheckpointInfo
    tokenizer: Tokenizer
    renderer: PromptRenderer
    checkpoint: Path
    """The directory of its files."""
    checkpoint_config: GenerationConfig
    """The checkpoint's own sampling defaults."""


def load_text_side(config: Config, checkpoint: Path, info: CheckpointInfo) -> TextSide:
    """Reads tokenizer and chat template. Takes up to seconds; blocks.

    Raises:
        StartupError: one of them is broken, or what the settings say of the model is, or a
            sampling default of the checkpoint's is out of range.
    """
    name = f"models/{model_name(config)}"
    checkpoint_config = to_checkpoint_config(info.sampling_defaults)
    tokenizer = Tokenizer.load(checkpoint)
    override = Path(config.model.chat_template) if config.model.chat_template else None
    template = ChatTemplate.load(checkpoint, override=override)
    if template is None:
        structlog.get_logger().warning(
            "the model has no chat template: sessions and conversations are refused; "
            "set model.chat_template to serve them",
            model=name,
        )
    return TextSide(
        name=name,
        info=info,
        tokenizer=tokenizer,
        renderer=PromptRenderer(tokenizer, template, max_tokens=info.context_tokens),
        checkpoint=checkpoint,
        checkpoint_config=checkpoint_config,
    )


def served_model(
    config: Config,
    text: TextSide,
    engine: EngineHandle,
    *,
    checker_command: Sequence[str] | None = None,
) -> ServedModel:
    """Returns what an engine serves.

    Args:
        config: The settings in force.
        text: The model's text side.
        engine: The model's engine.
        checker_command: Runs the process that checks constraints; None: this Python's.
    """
    return ServedModel(
        name=text.name,
        tokenizer=text.tokenizer,
        renderer=text.renderer,
        engine=engine,
        checker=constraint_checker(config.constraints, text, engine, command=checker_command),
        limits=ServedLimits(
            max_outputs=config.limits.max_outputs,
            max_queued_requests=config.limits.max_queued_requests,
            max_message_bytes=config.server.max_message_bytes,
            max_queued_turns=config.sessions.max_queued_turns,
            max_sessions=config.sessions.max_sessions,
            constraints=ConstraintLimits(
                max_size_bytes=config.constraints.max_size_bytes,
                max_choices=config.constraints.max_choices,
                max_blank_characters=config.constraints.max_blank_characters,
            ),
        ),
        architecture=text.info.architecture,
        checkpoint_vocabulary_size=text.info.vocabulary_size,
        checkpoint_context_tokens=text.info.context_tokens,
        end_ids=union_of_end_ids(text.info.end_ids, text.tokenizer.end_ids),
        checkpoint_config=text.checkpoint_config,
    )


def constraint_checker(
    limits: ConstraintsConfig,
    text: TextSide,
    engine: EngineHandle,
    *,
    command: Sequence[str] | None,
) -> ConstraintChecker:
    """Returns what checks constraints for a model; its processes start when first needed."""
    worker = WorkerLimits(cpu_s=limits.check_limit_s, memory_bytes=limits.check_memory_bytes)

    def start(backend: GrammarBackend) -> CheckerStart:
        facts = engine.facts
        return CheckerStart(
            checkpoint=str(text.checkpoint),
            backend=backend,
            vocabulary_size=facts.vocabulary_size if facts else text.info.vocabulary_size,
            num_workers=limits.check_workers,
            worker_limits=worker,
            max_depth=limits.max_depth,
            max_grammar_bytes=limits.max_grammar_bytes,
        )

    return ConstraintChecker(
        {name: CheckerLink(partial(start, name), command=command) for name in GrammarBackend},
        CheckerLimits(
            max_pending=limits.check_workers + limits.max_queued_checks,
            cache_bytes=limits.cache_bytes,
            worker=worker,
        ),
    )


def model_name(config: Config) -> str:
    """Returns the model's id: what the settings say, or else the last part of its source.

    Raises:
        StartupError: the settings give it a name that is none.
    """
    name = config.model.name
    if not name:
        return _name_from(config.model.source)
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
        raise StartupError(
            f"model.name is {name!r}; it takes 1 to {_MAX_NAME_CHARS} characters from "
            "a-z, A-Z, 0-9, '.', '_' and '-', a letter or digit first"
        )
    return name


def _name_from(source: str) -> str:
    if source == "demo":
        return _DEMO_NAME
    last = Path(source).name.removesuffix(".gguf").lower()
    name = re.sub(r"[^a-z0-9._-]+", "-", last).strip("._-")[:_MAX_NAME_CHARS]
    return name or "model"
