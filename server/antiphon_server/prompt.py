"""From a request's prompt to its token ids."""

from typing import Final

from antiphon.v1.types_pb2 import Prompt, ReasoningConfig

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.offload import Offload
from antiphon_server.served_model import ServedModel
from antiphon_server.text.prompt_renderer import Rendered
from antiphon_server.validation import check_prompt
from antiphon_server.validation_fields import join_path

_MANY_ITEMS: Final = 1000
"""To check more would hold the event loop up."""


def asks_to_think(reasoning: ReasoningConfig) -> bool | None:
    """Returns whether the model is to think; None: as it does by itself."""
    return reasoning.enabled if reasoning.HasField("enabled") else None


async def render_prompt(
    prompt: Prompt,
    *,
    model: ServedModel,
    offload: Offload,
    path: str,
    reasoning: bool | None = None,
) -> Rendered:
    """Returns the prompt as the model gets it: at least one token id, and its text.

    The text of token ids is left empty: most callers have no use for it, and it takes long.

    An empty text is a prompt where the tokenizer puts a token before every text, and else refused.

    Args:
        prompt: As it came.
        model: Whose prompt it is.
        offload: Where the work is done.
        path: What stands before the prompt's fields where one is at fault.
        reasoning: Whether the model is to think; None: the template's own default.

    Raises:
        InvalidRequest: the prompt is malformed, empty, or has a token id beyond the vocabulary.
        AntiphonError: UNSUPPORTED_FEATURE, NO_CHAT_TEMPLATE, TEMPLATE_ERROR, TOOL_RESULTS_MISSING
            or OVERLOADED.
    """
    if len(prompt.conversation.items) <= _MANY_ITEMS:
        check_prompt(prompt, path, model=model)
    else:
        await offload.run(check_prompt, prompt, path, model=model)
    return await offload.run(_render, prompt, model, path, reasoning)


def _render(prompt: Prompt, model: ServedModel, path: str, reasoning: bool | None) -> Rendered:
    kind = prompt.WhichOneof("kind")
    if kind == "token_ids":
        return _take_ids(prompt, model, join_path(path, "token_ids.ids"))
    if kind == "conversation":
        conversation = prompt.conversation
        rendered = model.renderer.render_conversation(
            conversation.items,
            tools=conversation.tools,
            reasoning=reasoning,
            path=join_path(path, "conversation"),
        )
    else:
        rendered = model.renderer.render_text(
            prompt.text, allow_special_tokens=prompt.allow_special_tokens
        )
    if not rendered.token_ids:
        raise InvalidRequest(
            FieldViolation(
                join_path(path, str(kind)),
                "makes an empty prompt, since this model's tokenizer puts nothing before a text",
            )
        )
    return rendered


def _take_ids(prompt: Prompt, model: ServedModel, path: str) -> Rendered:
    token_ids = list(prompt.token_ids.ids)
    vocabulary_size = model.vocabulary_size
    if max(token_ids) >= vocabulary_size:
        index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidRequest(
            FieldViolation(
                f"{path}[{index}]",
                f"token ids are below the vocabulary's size {vocabulary_size}, "
                f"is {token_ids[index]}",
            )
        )
    return Rendered(text="", token_ids=token_ids)
