"""Prompts: from text or a conversation to the token ids that the model gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import Item, Tool

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.text.chat_template import ChatTemplate, TemplateInput
from antiphon_server.text.content_marks import ContentMarks, RenderedChat
from antiphon_server.text.continuation import choose_stand_in, make_up_histories
from antiphon_server.text.control_tokens import ControlToken
from antiphon_server.text.output_channels import ThinkingStart
from antiphon_server.text.template_habits import TemplateHabits, read_habits
from antiphon_server.text.template_messages import (
    Message,
    contents_of,
    map_contents,
    to_messages,
    to_template_tools,
)
from antiphon_server.text.tokenizer import Tokenizer
from antiphon_server.validation_fields import join_path

_CHARACTERS_PER_TOKEN: Final = 16
"""More than prompts have on average; of a text with more for each token of the context, only so
much is encoded before it is known whether it has a chance."""

_TAIL_TOKENS: Final = 32
"""As much of a prompt's end as a marker and the blanks behind it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt or a part of one: its text and the ids that go to the model."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surroundings:
    """What every rendering of one conversation has in common."""

    template: ChatTemplate
    tools: list[Message] | None
    reasoning: bool | None


class PromptRenderer:
    """Renders prompts. CPU work, for a worker thread; may be called from several at once.

    What contents say is never read as control tokens: they come out as the visible characters
    they are. Otherwise text and ids are those of transformers' `apply_chat_template`.

    Attributes:
        chat: Whether conversations can be rendered.
        tools: Whether the template shows tools to the model.
        reasoning: Whether the template has a switch for thinking.
        habits: How the model writes calls, and what it thinks in.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        max_tokens: int | None = None,
    ) -> None:
        """Renders with the checkpoint's tokenizer and template.

        Args:
            tokenizer: The checkpoint's.
            template: The checkpoint's; None: it has none.
            max_tokens: The model's context. What is clearly longer is refused before seconds go
                into encoding all of it.
        """
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._template = template
        self._marks = ContentMarks(tokenizer.control_tokens)
        self._controls_by_id = {
            token.token_id: token for token in tokenizer.control_tokens.by_text.values()
        }
        self.chat = template is not None
        self.tools = template is not None and template.takes_tools
        self.reasoning = template is not None and template.takes_reasoning
        self.habits = (
            read_habits(template, tokenizer.named_tokens) if template else TemplateHabits()
        )

    def render_text(self, text: str, *, allow_special_tokens: bool) -> Rendered:
        """A text to continue, with what the tokenizer puts around a text.

        Raises:
            AntiphonError: CONTEXT_LENGTH_EXCEEDED.
        """
        self._check_length(text)
        token_ids = self._tokenizer.encode(
            text, add_special_tokens=True, allow_special_tokens=allow_special_tokens
        )
        return Rendered(text=text, token_ids=token_ids)

    def render_conversation(
        self,
        items: Sequence[Item],
        *,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        reasoning: bool | None = None,
        path: str = "",
    ) -> Rendered:
        """The whole conversation, up to where the model's answer begins.

        Args:
            items: What was said.
            instructions: What stands before all of it.
            tools: What the model may call.
            reasoning: Whether the model is to think; None: as it does by itself.
            path: The field whose fields `items` and `tools` are, for refusals.

        Raises:
            AntiphonError: NO_CHAT_TEMPLATE, TEMPLATE_ERROR, UNSUPPORTED_FEATURE, INVALID_FIELD or
                CONTEXT_LENGTH_EXCEEDED.
        """
        around = self._surroundings(tools, reasoning, path)
        messages = to_messages(items, instructions=instructions, path=join_path(path, "items"))
        if not messages:
            raise AntiphonError(ErrorReason.TEMPLATE_ERROR, "the conversation is empty")
        chat = self._render(messages, around)
        self._check_length(chat.text)
        return Rendered(text=chat.text, token_ids=self._encode_whole(chat))

    def render_continuation(
        self,
        new_items: Sequence[Item],
        *,
        kept_tail: Sequence[int],
        instructions: str = "",
        tools: Sequence[Tool] = (),
        reasoning: bool | None = None,
    ) -> Rendered:
        """What follows an answer of the model's that is kept as it was generated.

        Args:
            new_items: What comes behind the answer.
            kept_tail: The last of the ids that are kept. Where they end with the token that ends
                an answer, what is returned begins behind it.
            instructions: Those of the conversation.
            tools: Those of the conversation.
            reasoning: As for `render_conversation`.

        Raises:
            AntiphonError: As `render_conversation`; TEMPLATE_ERROR also where the template shows
                answers in no form that could be gone on from.
        """
        around = self._surroundings(tools, reasoning)
        new_messages = to_messages(new_items)
        last_kept = self._controls_by_id.get(kept_tail[-1]) if kept_tail else None
        lead: list[Message] = to_messages((), instructions=instructions)
        stand_in = choose_stand_in(
            [around.template.text, *contents_of([*lead, *new_messages, *(around.tools or ())])]
        )
        refusal: AntiphonError | None = None
        for history in make_up_histories(new_messages, stand_in):
            try:
                chat = self._render([*lead, *history.messages, *new_messages], around)
            except AntiphonError as error:
                refusal = refusal or error
                continue
            rest = history.rest_of(chat, last_kept)
            if rest is not None:
                self._check_length(rest.text)
                return Rendered(text=rest.text, token_ids=self._encode_behind(rest, last_kept))
        raise refusal or AntiphonError(
            ErrorReason.TEMPLATE_ERROR,
            "the chat template doesn't show earlier answers as they are, so that nothing can be "
            "put after one: have every turn render the whole conversation",
        )

    def _check_length(self, text: str) -> None:
        """Refuses a text whose beginning alone is longer than the context."""
        if self._max_tokens is None or len(text) <= _CHARACTERS_PER_TOKEN * self._max_tokens:
            return
        beginning = text[: _CHARACTERS_PER_TOKEN * self._max_tokens]
        # A word that is cut at the end may count for more tokens than the whole word does.
        num_tokens = len(self._tokenizer.plain.encode_beginning(beginning)) - _CHARACTERS_PER_TOKEN
        if num_tokens <= self._max_tokens:
            return
        raise AntiphonError(
            ErrorReason.CONTEXT_LENGTH_EXCEEDED,
            f"the first {len(beginning)} of the prompt's {len(text)} characters have more tokens "
            f"than the context's {self._max_tokens}; shorten the prompt",
            metadata={"limit": str(self._max_tokens), "prompt": str(num_tokens)},
        )

    def thinking_start(self, prompt_ids: Sequence[int]) -> ThinkingStart:
        """Says whether what follows a rendered conversation begins with thinking."""
        markers = self.habits.reasoning
        if markers is None:
            return ThinkingStart.NEVER
        tail = self._tokenizer.decode(prompt_ids[-_TAIL_TOKENS:], skip_special_tokens=False)
        if tail.rstrip().endswith(markers.opener):
            return ThinkingStart.OPENED
        is_closed = tail.rstrip().endswith(markers.closer)
        return ThinkingStart.NEVER if is_closed else ThinkingStart.BY_MODEL

    def opening_of_thinking(self) -> list[int]:
        """Returns what opens the thinking where the template leaves that to the model.

        So the thinking's end is known to come, whatever must hold for what is behind it.
        """
        assert self.habits.reasoning is not None
        opener = self.habits.reasoning.opener
        known = self._tokenizer.control_tokens.by_text.get(opener)
        if known is None:
            return self._tokenizer.plain.encode_after_text(opener + "\n")
        behind = self._tokenizer.plain.encode_after_token("\n", normalized=known.normalized)
        return [known.token_id, *behind]

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, as it is told."""
        return self._tokenizer.decode_answer(token_ids)

    def _surroundings(
        self, tools: Sequence[Tool], reasoning: bool | None, path: str = ""
    ) -> _Surroundings:
        """Checks that the template can do what is asked for."""
        if self._template is None:
            raise AntiphonError(
                ErrorReason.NO_CHAT_TEMPLATE,
                "the model's checkpoint has no chat template: send the prompt as text or token "
                "ids, or start the server with a template of your own",
            )
        if tools and not self.tools:
            raise _lacking("tools", "the model's chat template doesn't show tools to the model")
        if reasoning is not None and not self.reasoning:
            raise _lacking("reasoning", "the model's chat template has no switch for thinking")
        return _Surroundings(
            template=self._template,
            tools=to_template_tools(tools, join_path(path, "tools")),
            reasoning=reasoning,
        )

    def _render(self, messages: Sequence[Message], around: _Surroundings) -> RenderedChat:
        """Renders, and tells the template's own control tokens from what contents say."""
        contents = contents_of([*messages, *(around.tools or ())])
        if not self._marks.concerns(contents):
            return self._marks.read_unmarked(self._fill(around, messages, str))
        mark = self._marks.choose(contents, around.template.text)
        sparing = self._fill(around, messages, lambda text: self._marks.mark_sparingly(text, mark))
        chat = self._marks.read(sparing, mark)
        try:
            everywhere = self._fill(
                around, messages, lambda text: self._marks.mark_everywhere(text, mark)
            )
        except AntiphonError:
            return chat
        surer = self._marks.read(everywhere, mark)
        # Templates that look into contents may take other ways where more is marked.
        return surer if surer.text == chat.text else chat

    def _fill(
        self, around: _Surroundings, messages: Sequence[Message], change: Callable[[str], str]
    ) -> str:
        """Renders the template with every content changed."""
        tools = None if around.tools is None else map_contents(around.tools, change)
        return around.template.render(
            TemplateInput(
                messages=map_contents(messages, change),
                tools=tools,
                reasoning=around.reasoning,
                named_tokens=self._tokenizer.named_tokens,
            )
        )

    def _encode_whole(self, chat: RenderedChat) -> list[int]:
        if chat.is_clean:
            token_ids = self._tokenizer.encode(
                chat.text, add_special_tokens=False, allow_special_tokens=True
            )
            # A normalizer may make control tokens of what didn't look like any.
            if sum(i in self._controls_by_id for i in token_ids) == len(chat.own_tokens):
                return token_ids
        start = chat.own_tokens[0].start if chat.own_tokens else len(chat.text)
        token_ids = self._tokenizer.plain.encode_beginning(chat.text[:start])
        return token_ids + self._encode_from_own_token(chat)

    def _encode_behind(self, chat: RenderedChat, last_kept: ControlToken | None) -> list[int]:
        """Encodes what stands behind kept ids."""
        plain = self._tokenizer.plain
        start = chat.own_tokens[0].start if chat.own_tokens else len(chat.text)
        if last_kept is None:
            token_ids = plain.encode_after_text(chat.text[:start])
        else:
            token_ids = plain.encode_after_token(chat.text[:start], normalized=last_kept.normalized)
        return token_ids + self._encode_from_own_token(chat)

    def _encode_from_own_token(self, chat: RenderedChat) -> list[int]:
        """Encodes the template's own control tokens and the plain pieces behind each."""
        token_ids: list[int] = []
        starts = [own.start for own in chat.own_tokens]
        for own, end in zip(chat.own_tokens, [*starts[1:], len(chat.text)], strict=False):
            token_ids.append(own.token.token_id)
            token_ids += self._tokenizer.plain.encode_after_token(
                chat.text[own.end : end], normalized=own.token.normalized
            )
        return token_ids


def _lacking(capability: str, words: str) -> AntiphonError:
    return AntiphonError(
        ErrorReason.UNSUPPORTED_FEATURE, words, metadata={"capability": capability}
    )
