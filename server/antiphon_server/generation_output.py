"""One output of a generation: from tokens to the text and the deltas that tell of it."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from antiphon.v1.types_pb2 import Delta, FinishReason, OutputChannel, StopMatch, ToolCall

from antiphon_engine.api import messages
from antiphon_engine.api.handle import OutputNews, RequestNews
from antiphon_server.convert import FINISH_REASONS, to_position_logprobs
from antiphon_server.output_calls import OutputCalls
from antiphon_server.telemetry.request_record import Stage
from antiphon_server.text.output_channels import Channel
from antiphon_server.text.output_text import OutputText, Piece, StopHit, join_pieces
from antiphon_server.text.tokenizer import Tokenizer
from antiphon_server.validation import ResolvedConfig

MAX_DELTA_ENTRIES: Final = 4096
"""Tokens and log-probabilities in a delta: keeps it far below a message's bound."""

OutputPart = Delta | ToolCall
"""Of an output, in order: text as it comes, and behind all of a call's text the call as a whole."""

_BURST_ENTRIES: Final = 512
"""Tokens and their log-probabilities, beyond which work on them leaves the event loop."""

# The generated enumerations look their values up by name each time.
_CHANNELS: Final = {
    Channel.CONTENT: OutputChannel.OUTPUT_CHANNEL_CONTENT,
    Channel.REASONING: OutputChannel.OUTPUT_CHANNEL_REASONING,
    Channel.TOOL_CALL: OutputChannel.OUTPUT_CHANNEL_TOOL_CALL,
}
_UNFINISHED: Final = FinishReason.FINISH_REASON_UNSPECIFIED
_BY_ITSELF: Final = FinishReason.FINISH_REASON_STOP

_SHOWN_ON_REQUEST: Final = frozenset({messages.FinishReason.END_ID, messages.FinishReason.STOP_ID})
"""Ends by a token, whose text is shown only where special tokens are."""
_OUT_OF_ROOM: Final = frozenset(
    {messages.FinishReason.MAX_OUTPUT_TOKENS, messages.FinishReason.CONTEXT_FULL}
)


@dataclass(slots=True, kw_only=True)
class OutputRecord:
    """What is known of one output; grows as its generation is read.

    It lives as long as its output grows, so what it keeps of each token is bytes and no object.
    """

    index: int
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    """All that count: up to the end, with the token that ended it."""
    logprobs: list[messages.TokenLogprobs] = field(default_factory=list)
    """Of each of `token_ids`, where they were asked for."""
    finish_reason: "FinishReason.ValueType" = _UNFINISHED
    stop_match: StopMatch | None = None
    content: bytearray = field(default_factory=bytearray)
    """What was delivered of its answer, UTF-8; whole characters."""
    thinking: bytearray = field(default_factory=bytearray)
    tool_calls: Sequence[ToolCall] = ()
    """Those that are complete."""
    stages: Sequence[Stage] = ()
    """Of the reading of its calls."""
    num_reasoning_tokens: int = 0
    ends_inside_call: bool = False
    """Whether a tool call has begun and not ended; set with the output's end."""
    has_broken_call: bool = False
    """What should have been a call was none, or has no end though the output ended by itself."""

    @property
    def text(self) -> str:
        """What was delivered of its answer."""
        return self.content.decode()

    @property
    def reasoning(self) -> str:
        """What was delivered of its thinking."""
        return self.thinking.decode()

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return self.finish_reason != _UNFINISHED


@dataclass(slots=True, kw_only=True)
class NewTokens:
    """What the engine brought of one output.

    Not frozen, though nobody changes it: one is made for each token, and frozen ones cost more.
    """

    token_ids: Sequence[int] = ()
    logprobs: Sequence[messages.TokenLogprobs] = ()
    """One entry a token where they were asked for."""
    ended: messages.FinishReason | None = None

    def split(self, max_tokens: int) -> Iterator["NewTokens"]:
        """Yields it in parts of bounded length; the last one has the end."""
        if len(self.token_ids) <= max_tokens:
            yield self
            return
        last = (len(self.token_ids) - 1) // max_tokens * max_tokens
        for start in range(0, last + 1, max_tokens):
            part = slice(start, start + max_tokens)
            yield NewTokens(
                token_ids=self.token_ids[part],
                logprobs=self.logprobs[part],
                ended=self.ended if start == last else None,
            )


def cut(
    news: RequestNews | None, progress: Sequence["OutputProgress"]
) -> list[tuple[int, NewTokens]]:
    """Returns what there is of each output, cut to what one delta may hold.

    Args:
        news: What the engine told; None: it gave no word on an end that was asked for, so that is
            taken as done.
        progress: Of all outputs.
    """
    if news is None:
        ended = NewTokens(ended=messages.FinishReason.CANCELLED)
        return [(index, ended) for index in range(len(progress))]
    parts = []
    for index in sorted(news.outputs):
        new = news.outputs[index]
        whole = NewTokens(token_ids=new.token_ids, logprobs=new.logprobs, ended=new.ended)
        parts += [(index, part) for part in whole.split(progress[index].max_take_tokens)]
    return parts


class OutputProgress:
    """Turns the tokens of one output into deltas, and finds its end.

    Used by one task at a time; `take` may run on any thread.

    Attributes:
        max_take_tokens: How many tokens `take` may get at a time.
        num_quick: How many it takes before work on them would hold up others.
        tells_text_only: Whether all it tells before its end is text of the answer.
    """

    __slots__ = (
        "_calls",
        "_config",
        "_num_told",
        "_record",
        "_reports_tokens",
        "_text",
        "_tokenizer",
        "_unreported_ids",
        "_unreported_logprobs",
        "_want_logprobs",
        "max_take_tokens",
        "num_quick",
        "tells_text_only",
    )

    def __init__(
        self,
        record: OutputRecord,
        *,
        text: OutputText,
        calls: OutputCalls,
        tokenizer: Tokenizer,
        config: ResolvedConfig,
    ) -> None:
        record.tool_calls, record.stages = calls.complete, calls.stages
        self._record = record
        self._text = text
        self._calls = calls
        self._tokenizer = tokenizer
        self._config = config
        self._want_logprobs = config.top_logprobs is not None
        num_entries = 1 if config.top_logprobs is None else 2 + config.top_logprobs
        self.max_take_tokens: Final = max(1, MAX_DELTA_ENTRIES // num_entries)
        self.num_quick: Final = _BURST_ENTRIES // num_entries
        self._reports_tokens = config.want_token_ids or self._want_logprobs
        self.tells_text_only: Final = text.is_plain and not self._reports_tokens
        # Tokens that no delta has reported yet, and how many of the first have their text out.
        self._unreported_ids: list[int] = []
        self._unreported_logprobs: list[messages.TokenLogprobs] = []
        self._num_told = 0

    @property
    def max_quick_tokens(self) -> int:
        """How many it takes quickly, and with nothing in them that must be waited for.

        That is an end that the engine does not tell, or the end of a call. One token does not hold
        a whole call.
        """
        if self.tells_text_only:
            return self.num_quick
        if self._config.stop_strings or self._text.open_call_start is not None:
            return 0
        return 1 if self._text.reads_calls else self.num_quick

    def is_burst(self, new: NewTokens) -> bool:
        """Whether new tokens are so many that work on them would hold up others."""
        return len(new.token_ids) > self.num_quick

    def whole_answer(self) -> str:
        """Returns the finished answer without the token that ended it, which may show in it."""
        record = self._record
        match = record.stop_match
        if match is None or not self._config.show_special_tokens:
            return record.text
        return record.text.removesuffix(self._tokenizer.token_bytes(match.token_id).decode())

    def take(self, new: NewTokens | OutputNews) -> list[OutputPart]:
        """Returns what is due; no delta of it is empty. Sets the record's end.

        REQUIRES: the output is not finished.
        """
        record, ended = self._record, new.ended
        assert not record.finished
        record.token_ids.extend(new.token_ids)
        if self._want_logprobs:
            record.logprobs.extend(new.logprobs)
        if self._reports_tokens:
            self._unreported_ids.extend(new.token_ids)
            self._unreported_logprobs.extend(new.logprobs)
        if ended in _SHOWN_ON_REQUEST:
            pieces = self._push_to_end(new.token_ids)
        else:
            pieces = self._text.push(new.token_ids)
            if pieces[-1].stop is None and ended is not None:
                pieces = join_pieces([*pieces, *self._text.finish()])
        stop = pieces[-1].stop
        if stop is not None:
            self._end_by_text(stop)
        elif ended is not None:
            self._end(ended)
        parts = self._report(pieces)
        if record.finished:
            self._note_calls_at_end()
        return parts

    def take_text(self, token_ids: Sequence[int]) -> str:
        """`take` where it tells text only and does not end: the text that is due, may be empty.

        Tokens behind the output's end are dropped.
        """
        record = self._record
        assert self.tells_text_only
        if record.finish_reason != _UNFINISHED:
            return ""
        record.token_ids.extend(token_ids)
        text = self._text.push_plain(token_ids)
        record.content += text.encode()
        return text

    def _push_to_end(self, token_ids: Sequence[int]) -> list[Piece]:
        """Pushes the last tokens of an output, which one of them ends, and all held text."""
        text = self._text
        pieces = text.push(token_ids[:-1])
        if pieces[-1].stop is not None:
            return pieces
        # Behind calls there is no text, so what ends the output doesn't show there.
        shows_last = self._config.show_special_tokens and not text.has_calls
        if shows_last:
            pieces += text.push(token_ids[-1:])
        if pieces[-1].stop is None:
            pieces += text.finish(hidden_last=not shows_last)
        return join_pieces(pieces)

    def take_last(self, new: NewTokens, reason: "FinishReason.ValueType") -> list[OutputPart]:
        """Like `take` for the tokens, after which the output ends for a reason of ours."""
        parts = self.take(replace(new, ended=None))
        if not self._record.finished:
            pieces = self._text.finish()
            stop = pieces[-1].stop
            if stop is not None:
                self._end_by_text(stop)
            else:
                self._record.finish_reason = reason
            parts += self._report(pieces)
            self._record.ends_inside_call = self._text.open_call_start is not None
        return parts

    def _end_by_text(self, stop: StopHit) -> None:
        """Ends the output where a stop string was found, and drops the tokens behind it."""
        record = self._record
        num_dropped = len(record.token_ids) - stop.keep_tokens
        assert num_dropped >= 0
        del record.token_ids[stop.keep_tokens :]
        del record.logprobs[stop.keep_tokens :]
        del self._unreported_ids[max(0, len(self._unreported_ids) - num_dropped) :]
        del self._unreported_logprobs[max(0, len(self._unreported_logprobs) - num_dropped) :]
        record.finish_reason = FinishReason.FINISH_REASON_STOP_SEQUENCE
        record.stop_match = StopMatch(text=stop.text)

    def _end(self, ended: messages.FinishReason) -> None:
        """Ends the output as the engine says."""
        assert ended is not messages.FinishReason.FINISHED_BY_CALLER
        record = self._record
        if ended in _OUT_OF_ROOM:
            # Whether the budget or the context came first depends on what was asked for alone.
            ended = (
                messages.FinishReason.CONTEXT_FULL
                if self._config.fills_context
                else messages.FinishReason.MAX_OUTPUT_TOKENS
            )
        record.finish_reason = FINISH_REASONS[ended]
        if ended in _SHOWN_ON_REQUEST:
            record.stop_match = StopMatch(token_id=record.token_ids[-1])

    def _note_calls_at_end(self) -> None:
        """Notes what an output that has ended leaves of its tool calls."""
        record = self._record
        record.ends_inside_call = self._text.open_call_start is not None
        if record.finish_reason == _BY_ITSELF:
            record.has_broken_call = record.ends_inside_call or self._text.is_broken
        if record.finish_reason == _BY_ITSELF and record.tool_calls:
            record.finish_reason = FinishReason.FINISH_REASON_TOOL_CALLS

    def _report(self, pieces: Sequence[Piece]) -> list[OutputPart]:
        """Returns deltas with new text, and the tokens whose text is out by now; and calls."""
        parts: list[OutputPart] = []
        self._record.num_reasoning_tokens = self._text.num_thinking_tokens
        for piece in pieces:
            delta = self._delta_of(piece)
            if self._reports_tokens:
                parts += self._with_its_tokens(delta, piece, is_last=piece is pieces[-1])
            elif piece.text:
                parts.append(delta)
            if piece.completes_call:
                parts.append(self._calls.complete[-1])
        return parts

    def _with_its_tokens(self, delta: Delta, piece: Piece, *, is_last: bool) -> Iterator[Delta]:
        """Yields a delta with the tokens up to its end; where they are many, some before it."""
        self._num_told += piece.num_tokens
        ends_here = is_last and self._record.finished
        assert not ends_here or self._num_told == len(self._unreported_ids)
        # A delta is bounded, so the first of many tokens go ahead of the text.
        while self._num_told > self.max_take_tokens:
            ahead = Delta(output_index=delta.output_index, channel=delta.channel)
            ahead.call_id = delta.call_id
            ahead.tool_name, delta.tool_name = delta.tool_name, ""
            yield self._with_tokens(ahead, self.max_take_tokens)
        if delta.text or (ends_here and self._num_told):
            yield self._with_tokens(delta, self._num_told)

    def _delta_of(self, piece: Piece) -> Delta:
        """Returns a piece without its tokens, and notes what it says."""
        record = self._record
        delta = Delta(
            output_index=record.index,
            channel=_CHANNELS[piece.channel],
            text=piece.text,
        )
        if piece.channel is Channel.TOOL_CALL:
            delta.call_id = self._calls.take(piece).call_id
            delta.tool_name = piece.tool_name
        elif piece.text:
            is_content = piece.channel is Channel.CONTENT
            (record.content if is_content else record.thinking).extend(piece.text.encode())
        return delta

    def _with_tokens(self, delta: Delta, num_tokens: int) -> Delta:
        """Returns the delta with what was asked for of the first tokens not reported yet."""
        token_ids = self._unreported_ids[:num_tokens]
        del self._unreported_ids[:num_tokens]
        self._num_told -= num_tokens
        if self._config.want_token_ids:
            delta.token_ids.extend(token_ids)
        if self._want_logprobs:
            entries = self._unreported_logprobs[:num_tokens]
            del self._unreported_logprobs[:num_tokens]
            delta.logprobs.extend(
                to_position_logprobs(token_id, entry, self._tokenizer)
                for token_id, entry in zip(token_ids, entries, strict=True)
            )
        return delta
