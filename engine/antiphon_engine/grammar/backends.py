"""The backends of a process, each built when it is first needed.

The checker of constraints uses them too, in a process of its own: what compiles there compiles
here, with the same libraries, vocabulary and options.
"""

import threading
from pathlib import Path

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.grammar import Grammar
from antiphon_engine.api.grammar import GrammarBackend as BackendName
from antiphon_engine.grammar.base import CompiledGrammar, GrammarBackend
from antiphon_engine.grammar.vocabulary import Vocabulary, read_vocabulary

LARGE_BYTES = 256 << 20
"""What grammars may take that have grown so much that they are not kept for later outputs."""


class Backends:
    """Finds the backend that a grammar names. May be used by several threads."""

    def __init__(self, vocabulary: Vocabulary, *, large_bytes: int = LARGE_BYTES) -> None:
        """Takes the model's vocabulary, and the memory for what outputs make of grammars."""
        self.vocabulary = vocabulary
        self._large_bytes = large_bytes
        self._built: dict[BackendName, GrammarBackend] = {}
        self._building = threading.Lock()

    @classmethod
    def load(
        cls, checkpoint: Path, *, vocabulary_size: int, large_bytes: int = LARGE_BYTES
    ) -> "Backends":
        """Returns the backends for a model. Raises StartupError where its tokenizer is unknown."""
        vocabulary = read_vocabulary(checkpoint, size=vocabulary_size)
        return cls(vocabulary, large_bytes=large_bytes)

    def __getitem__(self, name: BackendName) -> GrammarBackend:
        return self.build(name)

    def build(self, name: BackendName) -> GrammarBackend:
        """Returns a backend, which takes seconds where nobody has asked for it before.

        Raises:
            StartupError: its library is not there.
        """
        if (built := self._built.get(name)) is not None:
            return built
        with self._building:
            backend = self._built.get(name)
            if backend is None:
                try:
                    backend = self._built[name] = self._build(name)
                except ImportError as error:
                    raise StartupError(f"{name} can't be loaded: {error}") from error
            return backend

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compiles a grammar with the backend that it names.

        Raises:
            GrammarError: It can't be enforced.
            StartupError: The backend's library is not there.
        """
        return self[grammar.backend].compile(grammar)

    def _build(self, name: BackendName) -> GrammarBackend:
        # The libraries take seconds to import, and the first of them imports torch.
        if name is BackendName.XGRAMMAR:
            from antiphon_engine.grammar.xgrammar_backend import XgrammarBackend

            return XgrammarBackend(self.vocabulary)
        from antiphon_engine.grammar.llguidance_backend import LlguidanceBackend

        return LlguidanceBackend(self.vocabulary, large_bytes=self._large_bytes)
