"""A checkpoint's chat template: from messages to the text of a prompt."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.meta

from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_server.text.template_sandbox import (
    TemplateLimits,
    TemplateRefusalError,
    TemplateSandbox,
)
from antiphon_server.text.template_weights import TemplateBudgetError
from antiphon_server.text.tokenizer_files import read_json_object, read_text

MAX_MESSAGE_CHARS = 500
"""Of a template's own words in an error."""

_THINKING_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInput:
    """What a template is rendered with.

    Attributes:
        messages: Plain JSON values, as templates for Hugging Face checkpoints take them.
        tools: The tools on offer in the same form; None: none.
        reasoning: Whether the model is to think; None: the template's own default.
        named_tokens: Texts of special tokens by name, such as `bos_token`.
        add_generation_prompt: Whether the text ends where the model's answer begins.
    """

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    reasoning: bool | None = None
    named_tokens: Mapping[str, str]
    add_generation_prompt: bool = True


class ChatTemplate:
    """A template, or several under names, of which "default" and "tool_use" count.

    May be called from several threads.

    Attributes:
        text: All that it consists of.
        takes_tools: Whether it shows tools to the model.
        takes_reasoning: Whether it has a switch for thinking.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.text = "\n".join(sources.values())
        self._sandbox = TemplateSandbox(limits or TemplateLimits(), now=now)
        self._templates: dict[str, jinja2.Template] = {}
        variables: set[str] = set()
        for name, text in sources.items():
            self._templates[name], used = self._compile(name, text)
            variables |= used
        self.takes_tools = "tool_use" in sources or "tools" in variables
        self._switches = tuple(switch for switch in _THINKING_SWITCHES if switch in variables)
        self.takes_reasoning = bool(self._switches)
        if "default" not in sources and "tool_use" not in sources:
            raise StartupError(
                f"the chat templates are named {sorted(sources)}: one must be named default"
            )

    @classmethod
    def load(cls, directory: Path, *, override: Path | None = None) -> "ChatTemplate | None":
        """Loads a checkpoint's template, or the file that stands in for it; None: it has none.

        Raises:
            StartupError: The template can't be read or parsed.
        """
        if override is not None:
            text = read_text(override)
            if text is None:
                raise StartupError(f"the chat template {override} is not there")
            return cls({"default": text})
        sources = _read_sources(directory)
        return cls(sources) if sources else None

    def render(self, given: TemplateInput) -> str:
        """The prompt's text.

        Raises:
            AntiphonError: TEMPLATE_ERROR; with the template's own words where it refuses.
        """
        variables: dict[str, object] = {
            **given.named_tokens,
            "messages": given.messages,
            "tools": given.tools,
            "documents": None,
            "add_generation_prompt": given.add_generation_prompt,
        }
        if given.reasoning is not None:
            variables.update(dict.fromkeys(self._switches, given.reasoning))
        try:
            return self._sandbox.render(self._choose(given.tools), variables)
        except (TemplateRefusalError, TemplateBudgetError) as error:
            raise _template_error(str(error)) from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            words = str(error) or type(error).__name__
            raise _template_error(f"the chat template failed: {words}") from error

    def _choose(self, tools: object) -> jinja2.Template:
        if tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        raise _template_error("the checkpoint's chat template is for requests with tools only")

    def _compile(self, name: str, text: str) -> tuple[jinja2.Template, set[str]]:
        """Returns a template, and the variables that it reads."""
        try:
            tree = self._sandbox.parse(text)
            template = self._sandbox.from_string(tree)
            return template, jinja2.meta.find_undeclared_variables(tree)
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(
                f"the chat template ({name}) is broken in line {error.lineno}: {error.message}"
            ) from error


def _template_error(words: str) -> AntiphonError:
    if len(words) > MAX_MESSAGE_CHARS:
        words = words[: MAX_MESSAGE_CHARS - 1] + "…"
    return AntiphonError(ErrorReason.TEMPLATE_ERROR, words)


def _read_sources(directory: Path) -> dict[str, str]:
    """Template files go before the settings' template."""
    text = read_text(directory / "chat_template.jinja")
    sources = _settings_sources(directory) if text is None else {"default": text}
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = read_text(path) or ""
    return sources


def _settings_sources(directory: Path) -> dict[str, str]:
    path = directory / "tokenizer_config.json"
    settings = read_json_object(path).get("chat_template")
    if settings is None:
        return {}
    if isinstance(settings, str):
        return {"default": settings}
    if not isinstance(settings, list):
        raise StartupError(f"{path}: chat_template is neither text nor a list")
    sources: dict[str, str] = {}
    for entry in settings:
        match entry:
            case {"name": str(name), "template": str(text)}:
                sources[name] = text
            case _:
                raise StartupError(
                    f"{path}: chat_template is a list whose entry {json.dumps(entry)[:80]} lacks "
                    "a name or a template"
                )
    return sources
