"""A checkpoint's tokenizer: text to token ids and back."""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers.processors import TemplateProcessing

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.token_bytes import METASPACE
from antiphon_server.text.control_tokens import ControlToken, ControlTokens
from antiphon_server.text.detokenizer import Detokenizer
from antiphon_server.text.plain_encoder import PlainEncoder
from antiphon_server.text.token_decoding import read_decoding
from antiphon_server.text.tokenizer_files import (
    DeclaredToken,
    TokenizerFiles,
    read_tokenizer_files,
)
from antiphon_server.text.unlocked import encode_unlocked


class Tokenizer:
    """Encodes and decodes. Immutable once loaded; may be called from several threads.

    Attributes:
        vocabulary_size: One past the highest token id, added tokens included; a model's own
            vocabulary may be larger.
        end_ids: The end-of-sequence ids that the tokenizer's own settings name.
        special_ids: Ids of special tokens, which don't show unless asked for.
        named_tokens: Texts of the special tokens that have names, such as `bos_token`.
        control_tokens: Added tokens that a text must not be able to write.
        plain: Encodes text with all control tokens off.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._full = _build(files)
        vocabulary = self._full.get_vocab(with_added_tokens=True)
        added = self._full.get_added_tokens_decoder()
        self._decoding = read_decoding(json.loads(files.definition), vocabulary)
        self.vocabulary_size = len(self._decoding.bytes_by_id)
        self.named_tokens = dict(files.named_tokens)
        end_id = vocabulary.get(self.named_tokens.get("eos_token", ""))
        self.end_ids = frozenset() if end_id is None else frozenset({end_id})
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.control_tokens = ControlTokens(
            ControlToken(
                token_id=token_id,
                text=token.content,
                eats_left=token.lstrip,
                eats_right=token.rstrip,
                whole_word=token.single_word,
                normalized=token.normalized,
            )
            for token_id, token in added.items()
            if _is_control(token.content)
        )
        blank_tokens = [token for token in added.values() if not _is_control(token.content)]
        self.plain = PlainEncoder(
            self._full,
            kept_tokens=blank_tokens,
            controls=self.control_tokens,
            bytes_by_id=self._decoding.bytes_by_id,
        )
        self._around = _put_around(self._full)

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Loads a checkpoint directory's tokenizer.

        Raises:
            StartupError: It is absent, broken, or of a kind that is not served.
        """
        try:
            return cls(read_tokenizer_files(directory))
        except StartupError as error:
            raise StartupError(f"the tokenizer of {directory} can't be used: {error}") from error

    def encode(
        self, text: str, *, add_special_tokens: bool, allow_special_tokens: bool
    ) -> list[int]:
        """The text's token ids.

        Args:
            text: Any text.
            add_special_tokens: Whether what the tokenizer puts around a text comes with it.
            allow_special_tokens: Whether added tokens written out in the text become those
                tokens; if not, they stay visible text.
        """
        if allow_special_tokens:
            return encode_unlocked(self._full, text, add_special_tokens=add_special_tokens)
        ids = self.plain.encode_beginning(text)
        if not add_special_tokens:
            return ids
        return [*self._around[0], *ids, *self._around[1]]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The ids' text; ids beyond the tokenizer show nothing, broken characters as U+FFFD."""
        detokenizer = self.detokenizer(hide_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def decode_answer(self, token_ids: Sequence[int]) -> str:
        """The text of ids that a model said behind a prompt, without special tokens."""
        detokenizer = Detokenizer(self._decoding, hidden_ids=self.special_ids, begins_text=False)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def detokenizer(
        self,
        *,
        hide_special_tokens: bool,
        prompt_tail: Sequence[int] = (),
        is_exact: bool = False,
        never_hidden: Sequence[str] = (),
    ) -> Detokenizer:
        """A decoder for a text that comes in pieces and continues what `prompt_tail` ends.

        Args:
            hide_special_tokens: Whether special tokens show nothing.
            prompt_tail: The last ids of what the text continues.
            is_exact: Whether a leading blank stays, even where there is nothing to continue.
            never_hidden: Texts of special tokens that show all the same.
        """
        hidden_ids = self.special_ids if hide_special_tokens else frozenset()
        if hidden_ids and never_hidden:
            known = self.control_tokens.by_text
            hidden_ids -= {known[text].token_id for text in never_hidden if text in known}
        shows = (i not in hidden_ids and self.token_bytes(i) != b"" for i in prompt_tail)
        begins_text = not is_exact and not any(shows)
        return Detokenizer(self._decoding, hidden_ids=hidden_ids, begins_text=begins_text)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, which may be a part of a character; b"" beyond the tokenizer."""
        table = self._decoding.bytes_by_id
        return table[token_id] if 0 <= token_id < len(table) else b""


def _is_control(content: str) -> bool:
    """Runs of blanks and single characters among the added tokens are ordinary text."""
    return len(content) > 1 and content.strip(" \t\r\n" + METASPACE) != ""


def _build(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """The tokenizer of the definition with what the settings add to it."""
    try:
        # The library raises plain Exception, and nothing narrower, for a broken definition.
        tokenizer = tokenizers.Tokenizer.from_str(files.definition)
    except Exception as error:
        raise StartupError(f"tokenizer.json is broken: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for declared in files.declared_tokens:
        _declare(tokenizer, declared)
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    for content in (*files.named_tokens.values(), *files.extra_special_tokens):
        known = added.get(content)
        if known is None or not known.special:
            tokenizer.add_special_tokens([content])
    if files.add_bos is not None or files.add_eos is not None:
        _set_around(tokenizer, files)
    return tokenizer


def _declare(tokenizer: tokenizers.Tokenizer, declared: DeclaredToken) -> None:
    token = tokenizers.AddedToken(
        declared.content,
        single_word=declared.single_word,
        lstrip=declared.lstrip,
        rstrip=declared.rstrip,
        normalized=declared.normalized,
        special=declared.special,
    )
    if declared.special:
        tokenizer.add_special_tokens([token])
    else:
        tokenizer.add_tokens([token])
    token_id = tokenizer.token_to_id(declared.content)
    if token_id != declared.token_id:
        raise StartupError(
            f"tokenizer_config.json gives {declared.content!r} the id {declared.token_id}, "
            f"tokenizer.json {token_id}"
        )


def _set_around(tokenizer: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Sets what the settings want in front of a text and behind it."""
    begin = files.named_tokens.get("bos_token") if files.add_bos else None
    end = files.named_tokens.get("eos_token") if files.add_eos else None
    parts = [begin, "$A", end]
    tokenizer.post_processor = TemplateProcessing(
        single=[part for part in parts if part],
        special_tokens=[(part, tokenizer.token_to_id(part)) for part in (begin, end) if part],
    )


def _put_around(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts in front of a text and behind it."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    own = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    first, last = (own[0], own[-1]) if own else (len(encoding.ids), len(encoding.ids))
    return encoding.ids[:first], encoding.ids[last + 1 :]
