"""A session's context: what its next prompt stands on.

With HISTORY_POLICY_KEEP_TOKENS that is a log of token ids:

    first prompt | output | continuation | output | continuation | output …

Only what is new is rendered. Items of appended turns wait until the next prompt takes them in.
Where instructions or tools have changed, the first prompt is rendered anew; all ids behind it stay.
With HISTORY_POLICY_RERENDER it is the conversation's items, and every prompt is rendered whole.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from antiphon.v1 import session_pb2
from antiphon.v1.types_pb2 import (
    FINISH_REASON_CANCELLED,
    FINISH_REASON_UNSPECIFIED,
    FinishReason,
    Item,
    Tool,
)

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.sessions.answers import Answer, AnswerPart
from antiphon_server.sessions.prompt_head import PromptHead
from antiphon_server.sessions.records import TurnRow, TurnTokens, token_array

KEPT_TAIL_TOKENS: Final = 64
"""How much of the kept ids a continuation is rendered against."""


class RenderedPrompt(Protocol):
    """A rendered prompt."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Its tokens."""


class Renderer(Protocol):
    """The part of the prompt renderer that a history needs. Its calls are CPU work."""

    def render_conversation(
        self,
        items: Sequence[Item],
        *,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        reasoning: bool | None = None,
    ) -> RenderedPrompt:
        """Renders a whole conversation."""

    def render_continuation(
        self,
        new_items: Sequence[Item],
        *,
        kept_tail: Sequence[int],
        instructions: str = "",
        tools: Sequence[Tool] = (),
        reasoning: bool | None = None,
    ) -> RenderedPrompt:
        """Renders what follows an answer whose ids end in `kept_tail`."""

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        """Returns the text of an answer's ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prompt, and what the turn adds to the token log if it completes."""

    prompt_ids: "array[int]"
    tokens: TurnTokens

    def followed_by(self, token_ids: Sequence[int]) -> "Prepared":
        """Returns the prompt with more behind it, which the turn adds as well."""
        more = array("i", token_ids)
        tokens = replace(self.tokens, added_ids=self.tokens.added_ids + more)
        return Prepared(prompt_ids=self.prompt_ids + more, tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A session's context after some turn. A value: a turn that completes gives the next one."""

    policy: int
    head_ids: "array[int]" = field(default_factory=token_array)
    """The prompt up to the first output."""
    head_digest: bytes = b""
    head_items: tuple[Item, ...] = ()
    """What `head_ids` was rendered from."""
    tail_ids: "array[int]" = field(default_factory=token_array)
    """All kept ids behind the first prompt. Grown in place: views of older values must not last."""
    pending: tuple[Item, ...] = ()
    """Items of appended turns that no prompt has taken in yet."""
    items: tuple[Item | Answer, ...] = ()
    """HISTORY_POLICY_RERENDER: all that a prompt has taken in, and the answers."""
    answered: bool = False
    """Whether there is an output yet."""
    num_tokens: int = 0
    """Of the context up to the last output's end, as the engine has seen it."""
    head_end: "FinishReason.ValueType" = FINISH_REASON_UNSPECIFIED
    """Why the last turn's answer ended; unspecified: the last turn has none."""
    ends_thinking: bool = False
    """Whether the last answer has not come further than its thinking."""
    first_reasoning: bool | None = None
    """Whether the model was told to think as `head_ids` were rendered."""
    open_calls: tuple[str, ...] = ()
    """The ids of the calls of the last answer that have no result yet."""
    head_traceparent: str = ""
    """Of the last turn's span, as W3C trace context; empty: it has none."""
    dropped_calls: tuple[str, ...] = ()
    """The ids of the calls that the last answer had and that are left out: it was stopped."""

    @property
    def rerenders(self) -> bool:
        """Whether every prompt is rendered whole."""
        return self.policy == session_pb2.HISTORY_POLICY_RERENDER

    def log(self, renderer: Renderer, head: PromptHead) -> "array[int]":
        """Returns the ids of the context as it stands. CPU work where it must be rendered.

        Raises:
            AntiphonError: the template refuses the conversation.
        """
        if not self.rerenders:
            return self.head_ids + self.tail_ids
        return self._whole_prompt(renderer, self.items, head)

    def prepare(self, renderer: Renderer, new_items: Sequence[Item], head: PromptHead) -> Prepared:
        """Renders the next prompt. CPU work; changes nothing.

        Raises:
            AntiphonError: the template refuses it.
        """
        fresh = (*self.pending, *new_items)
        assert fresh, "there is something to answer"
        if self.rerenders:
            prompt_ids = self._whole_prompt(renderer, (*self.items, *fresh), head)
            return Prepared(prompt_ids=prompt_ids, tokens=TurnTokens())
        if not self.answered:
            head_ids = self._whole_prompt(renderer, fresh, head)
            return Prepared(
                prompt_ids=head_ids, tokens=TurnTokens(head_ids=head_ids, head_digest=head.digest)
            )
        new_head = self._new_head(renderer, head)
        kept_ids = (self.head_ids if new_head is None else new_head) + self.tail_ids
        added = renderer.render_continuation(
            fresh,
            kept_tail=kept_ids[-KEPT_TAIL_TOKENS:],
            instructions=head.instructions,
            tools=head.tools,
            reasoning=head.reasoning,
        )
        added_ids = array("i", added.token_ids)
        return Prepared(
            prompt_ids=kept_ids + added_ids,
            tokens=TurnTokens(head_ids=new_head, head_digest=head.digest, added_ids=added_ids),
        )

    def prepare_to_continue(self, renderer: Renderer, head: PromptHead) -> Prepared:
        """Returns the prompt that goes on with the last answer. CPU work; changes nothing.

        REQUIRES: the last turn has an answer that can be gone on with.

        Raises:
            AntiphonError: the template refuses the conversation.
        """
        assert self.answered
        assert not self.pending
        if self.rerenders:
            *earlier, answer = self.items
            assert isinstance(answer, Answer)
            before = self._whole_prompt(renderer, earlier, head)
            return Prepared(prompt_ids=before + answer.token_ids, tokens=TurnTokens())
        new_head = self._new_head(renderer, head)
        head_ids = self.head_ids if new_head is None else new_head
        return Prepared(
            prompt_ids=head_ids + self.tail_ids,
            tokens=TurnTokens(head_ids=new_head, head_digest=head.digest),
        )

    def prepared_before(self, tokens: TurnTokens) -> Prepared:
        """Returns a prompt that was rendered before, from what its turn added then.

        REQUIRES: ids are kept, and the history is the same.
        """
        assert not self.rerenders
        head_ids = self.head_ids if tokens.head_ids is None else tokens.head_ids
        return Prepared(
            prompt_ids=head_ids + self.tail_ids + tokens.added_ids,
            tokens=replace(tokens, output_ids=token_array()),
        )

    def _whole_prompt(
        self, renderer: Renderer, items: Sequence[Item | Answer], head: PromptHead
    ) -> "array[int]":
        conversation = [
            said
            for item in items
            for said in (
                item.to_items(renderer.decode_answer) if isinstance(item, Answer) else [item]
            )
        ]
        rendered = renderer.render_conversation(
            conversation,
            instructions=head.instructions,
            tools=head.tools,
            reasoning=head.reasoning,
        )
        return array("i", rendered.token_ids)

    def _new_head(self, renderer: Renderer, head: PromptHead) -> "array[int] | None":
        if head.digest == self.head_digest:
            return None
        first = replace(head, reasoning=self.first_reasoning)
        return self._whole_prompt(renderer, self.head_items, first)

    def after(self, row: TurnRow) -> "History":
        """Returns the context behind a completed turn; this one must not be used any more."""
        return replace(self._behind(row), head_traceparent=row.turn.traceparent)

    def _behind(self, row: TurnRow) -> "History":
        new_items = tuple(row.turn.input)
        fresh = (*self.pending, *new_items)
        if not row.generates:
            return replace(
                self,
                pending=fresh,
                head_end=FINISH_REASON_UNSPECIFIED,
                ends_thinking=False,
                open_calls=_without_answered(self.open_calls, new_items),
            )
        if self.rerenders:
            return self._with_answer(row, fresh)
        tokens = row.tokens
        tail_ids = self.tail_ids
        tail_ids.extend(tokens.added_ids)
        tail_ids.extend(tokens.output_ids)
        return replace(
            self,
            head_ids=self.head_ids if tokens.head_ids is None else tokens.head_ids,
            head_digest=tokens.head_digest,
            head_items=self.head_items if self.answered else fresh,
            tail_ids=tail_ids,
            pending=(),
            answered=True,
            num_tokens=_num_tokens_behind(row),
            head_end=row.turn.output.finish_reason,
            ends_thinking=_ends_thinking(row),
            first_reasoning=self.first_reasoning if self.answered else _reasoning_of(row),
            open_calls=_open_calls_of(row),
            dropped_calls=_dropped_calls_of(row),
        )

    def _with_answer(self, row: TurnRow, fresh: tuple[Item, ...]) -> "History":
        """Returns what is rendered whole, with one more answer or a longer last one."""
        output = row.turn.output
        part = AnswerPart(output.text, output.reasoning, row.tokens.output_ids)
        # The calls of a turn that was stopped are left out.
        calls = tuple(output.tool_calls) if _open_calls_of(row) else ()
        answer = Answer((part,), calls)
        earlier = self.items
        if row.continues:
            begun, earlier = self.items[-1], self.items[:-1]
            assert isinstance(begun, Answer)
            answer = Answer(begun.parts + answer.parts, calls)
        return replace(
            self,
            items=(*earlier, *fresh, answer),
            pending=(),
            answered=True,
            num_tokens=_num_tokens_behind(row),
            head_end=row.turn.output.finish_reason,
            ends_thinking=_ends_thinking(row),
            open_calls=_open_calls_of(row),
            dropped_calls=_dropped_calls_of(row),
        )


def load_history(policy: int, rows: Sequence[TurnRow]) -> History:
    """Returns the context behind the turns of a history. CPU work where it is long."""
    history = History(policy=policy)
    for row in rows:
        history = history.after(row)
    return history


def prompt_of(row: TurnRow, earlier: Sequence[TurnRow]) -> "array[int]":
    """Returns the prompt of a turn whose tokens are kept, from those of the history before it."""
    before = load_history(session_pb2.HISTORY_POLICY_KEEP_TOKENS, earlier)
    head_ids = row.tokens.head_ids
    return (before.head_ids if head_ids is None else head_ids) + (
        before.tail_ids + row.tokens.added_ids
    )


def nothing_to_answer(path: str) -> InvalidRequest:
    """Returns the error for a turn without items where none were appended since the last answer."""
    return InvalidRequest(
        FieldViolation(
            f"{path}.items", "must not be empty unless items were appended since the last answer"
        )
    )


def _num_tokens_behind(row: TurnRow) -> int:
    return row.turn.usage.prompt_tokens + len(row.tokens.output_ids)


def _ends_thinking(row: TurnRow) -> bool:
    num_tokens = len(row.tokens.output_ids)
    return 0 < num_tokens <= row.turn.usage.reasoning_tokens


def _reasoning_of(row: TurnRow) -> bool | None:
    reasoning = row.turn.config.reasoning
    return reasoning.enabled if reasoning.HasField("enabled") else None


def _open_calls_of(row: TurnRow) -> tuple[str, ...]:
    return () if _was_stopped(row) else tuple(call.call_id for call in row.turn.output.tool_calls)


def _dropped_calls_of(row: TurnRow) -> tuple[str, ...]:
    return tuple(call.call_id for call in row.turn.output.tool_calls) if _was_stopped(row) else ()


def _was_stopped(row: TurnRow) -> bool:
    return row.turn.output.finish_reason == FINISH_REASON_CANCELLED


def _without_answered(open_calls: tuple[str, ...], items: Sequence[Item]) -> tuple[str, ...]:
    """Returns the calls that have no result behind items that were checked."""
    waiting = dict.fromkeys(open_calls)
    for item in items:
        if item.HasField("tool_call"):
            waiting[item.tool_call.call_id] = None
        elif item.HasField("tool_result"):
            waiting.pop(item.tool_result.call_id, None)
    return tuple(waiting)
