"""The text of one output as its tokens come: decoded, taken apart, stops held back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon_server.text.output_channels import Channel, ChannelSpec, OutputChannels, Part
from antiphon_server.text.stop_strings import StopStringMatch, StopStringScanner
from antiphon_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class StopHit:
    """A stop string in the output.

    Attributes:
        text: Which one.
        keep_tokens: Tokens from the output's beginning up to and with the one that completes it.
    """

    text: str
    keep_tokens: int


@dataclass(slots=True, kw_only=True)
class Piece:
    """Text that is ready to go out. Not frozen, since one is made for each token.

    Attributes:
        text: Whole characters; may be empty.
        num_tokens: The next so many tokens are now fully told. Tokens that show no text are told
            with the next text or with the last piece.
        stop: The stop string that ends the output here.
        channel: What it is a part of.
        call_index: TOOL_CALL: which of the output's calls, from 0.
        tool_name: TOOL_CALL: the tool, with the call's first text.
        completes_call: TOOL_CALL: all of the call's text is out.
    """

    text: str
    num_tokens: int
    stop: StopHit | None = None
    channel: Channel = Channel.CONTENT
    call_index: int = -1
    tool_name: str = ""
    completes_call: bool = False


def join_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Returns the pieces with neighbours of one part as one; one without text joins any."""
    joined = [*pieces[:1]]
    for piece in pieces[1:]:
        last = joined[-1]
        is_bare = not piece.text and not piece.completes_call
        if is_bare or (_part_of(piece) == _part_of(last) and not last.completes_call):
            last.text += piece.text
            last.num_tokens += piece.num_tokens
            last.stop = piece.stop
            last.completes_call |= piece.completes_call
        elif not last.text and not last.completes_call:
            piece.num_tokens += last.num_tokens
            joined[-1] = piece
        else:
            joined.append(piece)
    return joined


def _part_of(piece: Piece) -> tuple[Channel, int]:
    return piece.channel, piece.call_index


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """How an output's tokens become text.

    Attributes:
        prompt_tail: The last ids of the prompt: as much as can decide how the text begins.
        is_exact: Whether the text is what its tokens say, a leading blank included, whatever the
            prompt: what holds for it holds for that.
        stop_strings: Texts that end the output where its answer would contain one.
        include_stop_string: Whether the answer ends behind it, instead of before it.
        show_special_tokens: Whether special tokens stand in the text.
        channels: What the output may consist of.
    """

    prompt_tail: Sequence[int] = ()
    is_exact: bool = False
    stop_strings: Sequence[str] = ()
    include_stop_string: bool = False
    show_special_tokens: bool = False
    channels: ChannelSpec = field(default_factory=ChannelSpec)


class OutputText:
    """Turns one output's token ids into text.

    The text is the output's own as a continuation of the prompt: a dummy leading blank is taken
    off only where the prompt shows nothing and the text need not be exact. It doesn't depend on
    how the ids are cut into pushes. Stop strings are looked for in the answer alone.
    """

    __slots__ = (
        "_channels",
        "_detokenizer",
        "_held",
        "_include_stop_string",
        "_is_all_out",
        "_is_over",
        "_num_ends_dropped",
        "_num_pushed",
        "_num_released",
        "_num_thinking_tokens",
        "_num_told",
        "_scanner",
        "_stop_strings",
    )

    def __init__(self, tokenizer: Tokenizer, spec: TextSpec) -> None:
        """Reads an output of the tokenizer's model."""
        self._detokenizer = tokenizer.detokenizer(
            hide_special_tokens=not spec.show_special_tokens,
            prompt_tail=spec.prompt_tail,
            is_exact=spec.is_exact,
            never_hidden=spec.channels.markers,
        )
        self._channels = None if spec.channels.is_plain else OutputChannels(spec.channels)
        self._stop_strings = spec.stop_strings
        self._scanner = StopStringScanner(spec.stop_strings)
        self._include_stop_string = spec.include_stop_string
        self._held = ""
        self._num_released = 0  # characters that are out, or never go out
        self._num_pushed = 0
        self._num_told = 0
        self._num_ends_dropped = 0  # tokens whose ends are no longer kept
        self._num_thinking_tokens: int | None = None
        self._is_over = False
        self._is_all_out = False  # All that was pushed; counted by `_catch_up`.

    @property
    def num_thinking_tokens(self) -> int:
        """Tokens up to the end of the thinking, with those of its markers."""
        if self._num_thinking_tokens is not None:
            return self._num_thinking_tokens
        is_thinking = self._channels is not None and self._channels.is_thinking
        return self._num_pushed if is_thinking else 0

    @property
    def reads_calls(self) -> bool:
        """Whether calls are looked for."""
        return self._channels is not None and self._channels.reads_calls

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._channels is not None and self._channels.calls_start is not None

    @property
    def open_call_start(self) -> int | None:
        """Characters, markers included, before a call that has begun and not ended."""
        return self._channels.open_call_start if self._channels else None

    @property
    def is_broken(self) -> bool:
        """Whether what should have been a call was none."""
        return self._channels is not None and self._channels.is_broken

    @property
    def is_plain(self) -> bool:
        """Whether it is all answer, and nothing is looked for in it."""
        return self._channels is None and not self._stop_strings

    def push_plain(self, token_ids: Sequence[int]) -> str:
        """`push` where the output is plain: the one piece's text."""
        if len(token_ids) == 1 and (text := self._detokenizer.push_whole(token_ids[0])):
            self._num_pushed += 1
            self._is_all_out = True
            return text
        self._catch_up()
        self._num_pushed += len(token_ids)
        text = self._detokenizer.push(token_ids)
        if text:
            self._num_released += len(text)
            self._tell()
        return text

    def push(self, token_ids: Sequence[int]) -> list[Piece]:
        """What can go out now, at least one piece. After one with a stop hit nothing may follow."""
        assert not self._is_over, "the output is over"
        self._catch_up()
        self._num_pushed += len(token_ids)
        text = self._detokenizer.push(token_ids)
        return [self._release(text)] if self._channels is None else self._take_apart(text)

    def finish(self, *, hidden_last: bool = False) -> list[Piece]:
        """Everything that was held back, and all tokens that are not told yet.

        Args:
            hidden_last: The output ended with one more token, an end or stop token, which was not
                pushed because it must not show. It is told with the last piece. (Where special
                tokens show and no call stands before it, push it like any other.)
        """
        if self._is_over:
            return [Piece(text="", num_tokens=0)]
        self._catch_up()
        rest = self._detokenizer.finish()
        pieces = [self._release(rest)] if self._channels is None else self._take_apart(rest)
        if self._channels is not None and pieces[-1].stop is None:
            pieces += self._pieces_of(self._channels.finish())
        self._is_over = True
        if pieces[-1].stop is None:
            num_untold = self._num_pushed - self._num_told + hidden_last
            pieces.append(Piece(text=self._held, num_tokens=num_untold))
            self._held = ""
        return join_pieces(pieces)

    def _catch_up(self) -> None:
        """Counts what whole tokens have let out: not one by one, since they are most of all."""
        if self._is_all_out:
            self._is_all_out = False
            self._num_released = self._detokenizer.num_chars
            self._num_told = self._num_ends_dropped = self._num_pushed
            self._detokenizer.ends.clear()

    def _take_apart(self, text: str) -> list[Piece]:
        assert self._channels is not None
        pieces = self._pieces_of(self._channels.push(text))
        return pieces or [Piece(text="", num_tokens=0)]

    def _pieces_of(self, parts: Sequence[Part]) -> list[Piece]:
        self._count_thinking()
        pieces: list[Piece] = []
        for part in parts:
            if part.channel is Channel.CONTENT:
                # What lies between the last text and this part never goes out.
                self._num_released = max(
                    self._num_released, part.end - len(part.text) - len(self._held)
                )
                pieces.append(self._release(part.text, end=part.end))
                if pieces[-1].stop is not None:
                    break
            else:
                pieces += self._flush_held()
                self._num_released = part.end
                pieces.append(
                    Piece(
                        text=part.text,
                        num_tokens=self._tell() if part.text else 0,
                        channel=part.channel,
                        call_index=part.call_index,
                        tool_name=part.tool_name,
                        completes_call=part.completes_call,
                    )
                )
        return pieces

    def _flush_held(self) -> list[Piece]:
        """Lets go of what might have begun a stop string, since the answer is interrupted here."""
        if not self._held:
            return []
        text, self._held = self._held, ""
        self._scanner = StopStringScanner(self._stop_strings)
        self._num_released += len(text)
        return [Piece(text=text, num_tokens=self._tell())]

    def _count_thinking(self) -> None:
        channels = self._channels
        assert channels is not None
        if channels.thinking_end is None or self._num_thinking_tokens is not None:
            return
        self._num_thinking_tokens = self._num_tokens_to(channels.thinking_end)

    def _num_tokens_to(self, num_characters: int) -> int:
        """Returns how many tokens it takes until so many characters are complete."""
        complete = self._detokenizer.ends.complete
        index = next((i for i, count in enumerate(complete) if count >= num_characters), None)
        # It may end in the mark for a broken character, which only the end shows.
        index = len(complete) if index is None else index
        return min(self._num_ends_dropped + index + 1, self._num_pushed)

    def _release(self, text: str, end: int | None = None) -> Piece:
        """Lets a part of the answer out, as far as it can't begin a stop string.

        Args:
            text: The part.
            end: Characters of the whole output up to its end; None: all of it is answer.
        """
        if not self._stop_strings:
            self._num_released += len(text)
            return Piece(text=text, num_tokens=self._tell() if text else 0)
        before = self._scanner.num_scanned
        match = self._scanner.scan(text)
        if match is not None:
            start = before if end is None else end - len(text)
            return self._release_up_to(match, self._held + text, start + match.end - before)
        num_held = self._scanner.num_held
        if not (num_held or self._held):
            self._num_released += len(text)
            return Piece(text=text, num_tokens=self._tell() if text else 0)
        text = self._held + text
        num_out = len(text) - num_held
        self._held = text[num_out:]
        self._num_released += num_out
        num_tokens = self._tell() if num_out else 0
        return Piece(text=text[:num_out], num_tokens=num_tokens)

    def _release_up_to(self, match: StopStringMatch, text: str, end: int) -> Piece:
        """Ends the output with a stop string.

        Args:
            match: The stop string.
            text: What was held back, and the part that it ends in.
            end: Characters of the whole output up to the stop string's end.
        """
        self._is_over = True
        keep_tokens = self._num_tokens_to(end)
        shown_end = end if self._include_stop_string else end - len(match.text)
        num_tokens = keep_tokens - self._num_told
        return Piece(
            text=text[: max(0, shown_end - self._num_released)],
            num_tokens=num_tokens,
            stop=StopHit(text=match.text, keep_tokens=keep_tokens),
        )

    def _tell(self) -> int:
        """Counts the tokens that are fully out now and forgets them."""
        ends = self._detokenizer.ends
        num_tokens = len(ends.shown)
        while num_tokens and ends.shown[num_tokens - 1] > self._num_released:
            num_tokens -= 1
        del ends.shown[:num_tokens]
        del ends.complete[:num_tokens]
        self._num_ends_dropped += num_tokens
        self._num_told += num_tokens
        return num_tokens
