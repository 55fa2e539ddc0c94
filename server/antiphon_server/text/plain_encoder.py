"""Encodes text in which nothing is a control token."""

import re
from collections.abc import Sequence

import tokenizers

from antiphon_engine.api.errors import StartupError
from antiphon_server.text.control_tokens import ControlTokens
from antiphon_server.text.unlocked import encode_unlocked

_ANCHOR = "\ufdd0\ufdef\ufdd1"  # noncharacters: no text that means anything holds them
_NORMALIZED_ANCHOR = "\ufdd2\ufdef\ufdd3"
_LEADS = ("\n", "a", "0", ".", "\u00b7")


class PlainEncoder:
    """The tokenizer with its control tokens off. May be called from several threads.

    It encodes a piece of a text just as one pass over the whole text would, with what stands in
    front of the piece in mind: some tokenizers put a dummy blank at the beginning of a text, and
    some behind every control token too.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        kept_tokens: Sequence[tokenizers.AddedToken],
        controls: ControlTokens,
        bytes_by_id: Sequence[bytes],
    ) -> None:
        plain = tokenizers.Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            plain.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            plain.pre_tokenizer = tokenizer.pre_tokenizer
        plain.add_tokens(list(kept_tokens))
        plain.add_tokens(
            [
                tokenizers.AddedToken(_ANCHOR, normalized=False),
                tokenizers.AddedToken(_NORMALIZED_ANCHOR, normalized=True),
            ]
        )
        self._plain = plain
        self._controls = controls
        # Added tokens get new ids here; those of the real tokenizer go out.
        self._real_ids = {
            _id_of(plain, token.content): _id_of(tokenizer, token.content) for token in kept_tokens
        }
        self._anchor_ids = {
            anchor: _id_of(plain, anchor) for anchor in (_ANCHOR, _NORMALIZED_ANCHOR)
        }
        self._puts_blank_behind_token = self._adds_blank_behind_token(bytes_by_id)
        self._texts_to_cut = self._find_texts_to_cut()
        self._cut_inside = re.compile("|".join(map(re.escape, self._texts_to_cut)))

    def encode_beginning(self, text: str) -> list[int]:
        """The ids of a text's first piece."""
        first, *others = self._cut(text)
        return self._joined(self._ids_at_beginning(first), others)

    def encode_after_token(self, text: str, *, normalized: bool) -> list[int]:
        """The ids of a piece behind a control token, which is `normalized` or not."""
        first, *others = self._cut(text)
        anchor = _NORMALIZED_ANCHOR if normalized else _ANCHOR
        return self._joined(self._ids_behind(anchor, first), others)

    def encode_after_text(self, text: str) -> list[int]:
        """The ids of a piece that goes on where other text left off: no dummy blank."""
        return self._joined([], self._cut(text))

    def _joined(self, first_ids: list[int], others: Sequence[str]) -> list[int]:
        ids = list(first_ids)
        for piece in others:
            ids += self._ids_after_text(piece)
        return ids

    def _ids_after_text(self, text: str) -> list[int]:
        if not text:
            return []
        if self._puts_blank_behind_token:
            for lead in _LEADS:
                lead_ids = self._ids_behind(_ANCHOR, lead)
                ids = self._ids_behind(_ANCHOR, lead + text)
                if ids[: len(lead_ids)] == lead_ids:
                    return ids[len(lead_ids) :]
        return self._ids_behind(_ANCHOR, text)

    def _ids_at_beginning(self, text: str) -> list[int]:
        return self._real(encode_unlocked(self._plain, text, add_special_tokens=False))

    def _ids_behind(self, anchor: str, text: str) -> list[int]:
        ids = encode_unlocked(self._plain, anchor + text, add_special_tokens=False)
        # A dummy blank may stand before the anchor.
        return self._real(ids[ids.index(self._anchor_ids[anchor]) + 1 :])

    def _real(self, ids: list[int]) -> list[int]:
        if not self._real_ids:
            return ids
        return [self._real_ids.get(token_id, token_id) for token_id in ids]

    def _adds_blank_behind_token(self, bytes_by_id: Sequence[bytes]) -> bool:
        """Whether encoding puts a dummy blank behind a control token.

        Raises:
            StartupError: The tokenizer changes text in a way that is not served.
        """
        try:
            ids = self._ids_behind(_ANCHOR, "a")
            self._ids_behind(_NORMALIZED_ANCHOR, "a")
        except ValueError as error:
            raise StartupError(
                "tokenizer.json's normalizer takes characters away, which is not served"
            ) from error
        return b"".join(bytes_by_id[token_id] for token_id in ids).startswith(b" ")

    def _cut(self, text: str) -> list[str]:
        """Cuts the text inside of everything that would come out as a control token."""
        # Hardly any text holds one, and a plain search of a long text is far quicker.
        if not any(harmful in text for harmful in self._texts_to_cut):
            return [text]
        pieces: list[str] = []
        start = 0
        for match in self._cut_inside.finditer(text):
            pieces.append(text[start : match.start() + 1])
            start = match.start() + 1
        pieces.append(text[start:])
        return pieces

    def _find_texts_to_cut(self) -> list[str]:
        """Returns them, longest first: some vocabularies hold control tokens as plain words."""
        texts = [_ANCHOR, _NORMALIZED_ANCHOR]
        texts += [
            text
            for text in self._controls.by_text
            if not self._controls.ids.isdisjoint(self._ids_behind(_ANCHOR, text))
            or not self._controls.ids.isdisjoint(self._ids_at_beginning(text))
        ]
        return sorted(texts, key=len, reverse=True)


def _id_of(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None, f"{token!r} was added"
    return token_id
