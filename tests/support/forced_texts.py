"""Makes a scripted engine say a text token by token."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import tokenizers
from antiphon.v1.types_pb2 import ChatMessage, Item, Prompt, Role, TokenIds

from antiphon_server.text.tokenizer import Tokenizer
from support.server import RunningServer

VOCABULARY_SIZE = 8192
"""Of the scripted model: far more than its tokenizers have, for prompts that show no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A server whose model says what it is told to."""

    name: str
    server: RunningServer
    folder: Path
    """Where the engine finds what to say behind which token."""
    silent_ids: Iterator[int]
    """Tokens that show no text; each is used for one prompt."""
    reference: tokenizers.Tokenizer
    """The same tokenizer as the library reads it."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.server.model.tokenizer

    @property
    def end_id(self) -> int:
        """The token that ends an answer."""
        (end_id,) = self.tokenizer.end_ids
        return end_id

    def prompt_for(self, token_ids: Sequence[int]) -> Prompt:
        """Returns a prompt without text, to which the model answers just these tokens."""
        silent_id = next(self.silent_ids)
        self._write(silent_id, token_ids)
        return Prompt(token_ids=TokenIds(ids=[silent_id]))

    def answer_to(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Makes the model answer these tokens to prompts that end in the same token."""
        self._write(prompt_ids[-1], token_ids)

    def answer_turns(self, token_ids: Sequence[int]) -> None:
        """Makes the model answer these tokens in sessions' turns."""
        item = Item(message=ChatMessage(role=Role.ROLE_USER, text="Any."))
        rendered = self.server.model.renderer.render_conversation([item])
        self.answer_to(rendered.token_ids, token_ids)

    def encode(self, text: str) -> list[int]:
        """Returns the text's tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=False)

    def spell(self, text: str) -> list[int]:
        """Returns the text as tokens of one byte each."""
        by_byte: dict[bytes, int] = {}
        for token_id in reversed(range(self.tokenizer.vocabulary_size)):
            by_byte[self.tokenizer.token_bytes(token_id)] = token_id
        return [by_byte[bytes([byte])] for byte in text.encode()]

    def token_id(self, text: str) -> int:
        """Returns the id of a token by its own name."""
        token_id = self.reference.token_to_id(text)
        assert token_id is not None, text
        return token_id

    def _write(self, last_id: int, token_ids: Sequence[int]) -> None:
        (self.folder / str(last_id)).write_bytes(msgspec.json.encode(list(token_ids)))


def silent_ids(first: int) -> Iterator[int]:
    """Yields ids that no tokenizer has."""
    return itertools.takewhile(lambda token_id: token_id < VOCABULARY_SIZE, itertools.count(first))
