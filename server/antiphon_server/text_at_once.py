"""Text that is told where its tokens come about."""

from collections.abc import Callable
from typing import Final

from antiphon_engine.api.handle import RequestNews
from antiphon_server.generation_output import OutputProgress
from antiphon_server.request_facts import RequestFacts


class TextAtOnce:
    """Takes new tokens of one output that tells text only. Used on one event loop.

    It is small because it is used for each token: what a token touches of a stream has mostly left
    the processor's caches since the last one, where streams are many.
    """

    __slots__ = ("_facts", "_on_text", "_progress", "is_open")

    def __init__(
        self, progress: OutputProgress, facts: RequestFacts, on_text: Callable[[str], None]
    ) -> None:
        """Sets whose tokens it takes, what notes when they came, and what gets the text."""
        self.is_open = True
        """Whether it takes anything any more."""
        self._progress: Final = progress
        self._facts: Final = facts
        self._on_text: Final = on_text

    def take(self, news: RequestNews) -> bool:
        """Takes tokens in where that is quickly done. See TakeTokens."""
        token_ids = news.outputs[0].token_ids
        if not self.is_open or len(token_ids) > self._progress.num_quick:
            return False
        self._facts.note_tokens(news)
        if text := self._progress.take_text(token_ids):
            self._on_text(text)
        return True
