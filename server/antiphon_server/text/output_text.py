"""The text of one output as its tokens come: decoded, special tokens hidden, stops held back."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    text: str
    num_tokens: int
    stop: StopHit | None = None


class OutputText:
    """Turns one output's token ids into text.

    The text is the output's own as a continuation of the prompt: a dummy leading blank is taken
    off only where the prompt shows nothing. It doesn't depend on how the ids are cut into pushes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_tail: Sequence[int],
        stop_strings: Sequence[str],
        include_stop_string: bool,
        show_special_tokens: bool,
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(
            hide_special_tokens=not show_special_tokens, prompt_tail=prompt_tail
        )
        self._scanner = StopStringScanner(stop_strings)
        self._include_stop_string = include_stop_string
        self._held = ""
        self._num_released = 0  # characters that are out
        self._num_pushed = 0
        self._num_told = 0
        self._num_ends_dropped = 0  # tokens whose ends are no longer kept
        self._is_over = False

    def push(self, token_ids: Sequence[int]) -> Piece:
        """What can go out now. After a piece with a stop hit nothing may be pushed."""
        assert not self._is_over, "the output is over"
        self._num_pushed += len(token_ids)
        return self._release(self._detokenizer.push(token_ids))

    def finish(self, *, hidden_last: bool = False) -> Piece:
        """Everything that was held back, and all tokens that are not told yet.

        Args:
            hidden_last: The output ended with one more token, an end or stop token, which was not
                pushed because it must not show. It is told with this piece. (Where special tokens
                show, push it like any other.)
        """
        if self._is_over:
            return Piece(text="", num_tokens=0)
        piece = self._release(self._detokenizer.finish())
        self._is_over = True
        if piece.stop is not None:
            return piece
        text = piece.text + self._held
        self._held = ""
        num_tokens = self._num_pushed - self._num_told + piece.num_tokens + hidden_last
        return Piece(text=text, num_tokens=num_tokens)

    def _release(self, text: str) -> Piece:
        match = self._scanner.scan(text)
        if match is not None:
            return self._release_up_to(match, self._held + text)
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

    def _release_up_to(self, match: StopStringMatch, text: str) -> Piece:
        self._is_over = True
        complete = self._detokenizer.ends.complete
        index = next((i for i, count in enumerate(complete) if count >= match.end), len(complete))
        # A stop string may end in the mark for a broken character, which only the end shows.
        keep_tokens = min(self._num_ends_dropped + index + 1, self._num_pushed)
        end = match.end if self._include_stop_string else match.start
        num_tokens = keep_tokens - self._num_told
        return Piece(
            text=text[: end - self._num_released],
            num_tokens=num_tokens,
            stop=StopHit(text=match.text, keep_tokens=keep_tokens),
        )

    def _tell(self) -> int:
        """Counts the tokens that are fully out now and forgets them."""
        ends = self._detokenizer.ends
        num_tokens = 0
        for shown in ends.shown:
            if shown > self._num_released:
                break
            num_tokens += 1
        del ends.shown[:num_tokens]
        del ends.complete[:num_tokens]
        self._num_ends_dropped += num_tokens
        self._num_told += num_tokens
        return num_tokens
