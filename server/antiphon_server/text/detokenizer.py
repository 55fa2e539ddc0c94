"""Token ids to text, a few at a time, without ever showing half a character."""

import codecs
import enum
from collections.abc import Sequence

from antiphon_server.text.token_decoding import ByteRule, Decoding, LeadingBlank

REPLACEMENT = "\ufffd"
MAX_HELD_RUN_BYTES = 32
"""Byte tokens held back because a later one may spoil the run; past it, characters go out."""


class _RunState(enum.Enum):
    """What becomes of the byte tokens of the current run."""

    NONE = enum.auto()
    """No byte token has come since the last other one: there is no run."""
    HELD = enum.auto()
    """Kept back: a bad byte would still turn all of it into U+FFFD."""
    SHOWN = enum.auto()
    """Too long to be kept back: each character goes out once it is whole."""
    SPOILED = enum.auto()
    """A bad byte has come: every byte, up to the run's end, is U+FFFD."""


class TokenEnds:
    """Where each token ends in the text, in characters from the output's beginning, in order.

    Attributes:
        complete: Characters that are complete once the token is there.
        shown: Characters that must be out before all of the token's own are.
    """

    __slots__ = ("complete", "shown")

    def __init__(self) -> None:
        self.complete: list[int] = []
        self.shown: list[int] = []

    def add(self, complete: int, shown: int) -> None:
        """Appends one token."""
        self.complete.append(complete)
        self.shown.append(shown)

    def clear(self) -> None:
        """Removes all."""
        self.complete.clear()
        self.shown.clear()


class Detokenizer:
    """Decodes one text. What its pieces join to doesn't depend on how the ids were cut.

    The text is that of a full decode. Under `ByteRule.BY_RUN` a run of byte tokens is held back
    until it ends, since one bad byte spoils all of it; a run of over `MAX_HELD_RUN_BYTES` bytes
    that is good so far is shown, and a later bad byte then spoils its own character only.

    Attributes:
        ends: Where the tokens decoded so far end; tokens in a run held back are not in it yet.
            The owner may remove what it has read.
        num_chars: Characters of the text so far.
    """

    __slots__ = (
        "_bare_first",
        "_decoding",
        "_hidden_ids",
        "_is_apart",
        "_num_run_bytes",
        "_partial",
        "_run",
        "_run_state",
        "_strip_blank",
        "_whole_texts",
        "ends",
        "num_chars",
    )

    def __init__(
        self, decoding: Decoding, *, hidden_ids: frozenset[int], begins_text: bool
    ) -> None:
        self.ends = TokenEnds()
        self._decoding = decoding
        self._whole_texts = decoding.whole_texts
        self._hidden_ids = hidden_ids
        self.num_chars = 0
        leading = decoding.leading_blank if begins_text else LeadingBlank.KEPT
        self._strip_blank = leading is LeadingBlank.STRIPPED
        self._bare_first = leading is LeadingBlank.FIRST_TOKEN_BARED
        self._partial = b""  # the beginning of a character
        self._run: list[bytes] = []  # a held run's tokens: a byte each, or b"" for hidden ones
        self._num_run_bytes = 0
        self._run_state = _RunState.NONE
        self._is_apart = self._stands_apart  # Asked for each token.

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids make certain; may be empty."""
        if self._decoding.byte_rule is ByteRule.BY_CHARACTER:
            text = self._push_by_character(token_ids)
        else:
            text = self._push_by_run(token_ids)
        self._is_apart = self._stands_apart
        return text

    def push_whole(self, token_id: int) -> str:
        """`push` of a token whose text depends on no other, without noting where it ends.

        Returns:
            Its text; empty: it has none, or depends on another, and nothing was pushed.
        """
        if not self._is_apart or token_id in self._hidden_ids:
            return ""
        text = self._whole_texts.get(token_id) or self._decoding.whole_text(token_id)
        self.num_chars += len(text)
        return text

    def finish(self) -> str:
        """The text of what is held back: what is half a character becomes U+FFFD."""
        if self._decoding.byte_rule is ByteRule.BY_RUN:
            return self._end_run()
        text, self._partial = self._partial.decode("utf-8", "replace"), b""
        self.num_chars += len(text)
        return text

    @property
    def _stands_apart(self) -> bool:
        """Whether what comes next has nothing to do with what was before."""
        is_begun = bool(self._partial) or self._run_state is not _RunState.NONE
        return not (is_begun or self._strip_blank or self._bare_first)

    def _push_by_character(self, token_ids: Sequence[int]) -> str:
        table, hidden = self._decoding.bytes_by_id, self._hidden_ids
        complete, shown = self.ends.complete, self.ends.shown
        num_ids = len(table)
        pieces: list[str] = []
        partial, num_chars = self._partial, self.num_chars
        for token_id in token_ids:
            if token_id < num_ids and token_id not in hidden:
                data = partial + table[token_id]
                text, num_used = codecs.utf_8_decode(data, "replace", False)
                partial = data[num_used:]
                num_chars += len(text)
                pieces.append(text)
            complete.append(num_chars)
            shown.append(num_chars + 1 if partial else num_chars)
        self._partial, self.num_chars = partial, num_chars
        return "".join(pieces)

    def _push_by_run(self, token_ids: Sequence[int]) -> str:
        table, hidden, byte_ids = (
            self._decoding.bytes_by_id,
            self._hidden_ids,
            self._decoding.byte_ids,
        )
        pieces: list[str] = []
        for token_id in token_ids:
            if token_id >= len(table) or token_id in hidden:
                self._pass_silent()
            elif token_id in byte_ids:
                self._bare_first = False
                pieces.append(self._push_byte(table[token_id]))
            else:
                pieces.append(self._end_run())
                text = table[token_id].decode("utf-8", "replace")
                if self._bare_first and text:
                    text = text.replace(" ", "")
                    self._bare_first = False
                pieces.append(self._emit(text))
                self.ends.add(self.num_chars, self.num_chars)
        return "".join(pieces)

    def _emit(self, text: str) -> str:
        if self._strip_blank and text:
            self._strip_blank = False
            text = text.removeprefix(" ")
        self.num_chars += len(text)
        return text

    def _pass_silent(self) -> None:
        """Takes a token that shows nothing; behind a held run it keeps its place in the order."""
        if self._run:
            self._run.append(b"")
        else:
            self.ends.add(self.num_chars, self.num_chars + bool(self._partial))

    def _push_byte(self, byte: bytes) -> str:
        if self._run_state is _RunState.SPOILED:
            return self._show_bytes(REPLACEMENT)
        if self._run_state is _RunState.SHOWN:
            text = self._show_character(byte)
            self.ends.add(self.num_chars, self.num_chars + bool(self._partial))
            return text
        self._run_state = _RunState.HELD
        self._run.append(byte)
        self._num_run_bytes += 1
        try:
            data = self._partial + byte
            _, num_used = codecs.utf_8_decode(data, "strict", False)
            self._partial = data[num_used:]
        except UnicodeDecodeError:
            return self._spoil_run(_RunState.SPOILED)
        if self._num_run_bytes >= MAX_HELD_RUN_BYTES:
            return self._show_run(_RunState.SHOWN)
        return ""

    def _end_run(self) -> str:
        """Shows what the run that ends here holds back."""
        text = ""
        if self._run_state is _RunState.HELD:
            text = (
                self._spoil_run(_RunState.NONE) if self._partial else self._show_run(_RunState.NONE)
            )
        elif self._partial:
            text = self._emit(self._partial.decode("utf-8", "replace"))
        self._partial = b""
        self._run_state = _RunState.NONE
        return text

    def _spoil_run(self, next_state: _RunState) -> str:
        """Shows every byte of the held run as U+FFFD."""
        pieces: list[str] = []
        for token in self._take_run():
            if token:
                pieces.append(self._show_bytes(REPLACEMENT))
            else:
                self.ends.add(self.num_chars, self.num_chars)
        self._partial = b""
        self._run_state = next_state
        return "".join(pieces)

    def _show_run(self, next_state: _RunState) -> str:
        """Shows the held run's whole characters; a part of one stays behind."""
        self._partial = b""
        pieces: list[str] = []
        for token in self._take_run():
            pieces.append(self._show_character(token))
            self.ends.add(self.num_chars, self.num_chars + bool(self._partial))
        self._run_state = next_state
        return "".join(pieces)

    def _take_run(self) -> list[bytes]:
        run, self._run, self._num_run_bytes = self._run, [], 0
        return run

    def _show_character(self, data: bytes) -> str:
        data = self._partial + data
        text, num_used = codecs.utf_8_decode(data, "replace", False)
        self._partial = data[num_used:]
        return self._emit(text)

    def _show_bytes(self, text: str) -> str:
        text = self._emit(text)
        self.ends.add(self.num_chars, self.num_chars)
        return text
