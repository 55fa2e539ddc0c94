"""What is told of a prompt: its token ids, and how likely the model found each of them."""

from collections.abc import Iterator, Sequence
from typing import Final

from antiphon.v1.types_pb2 import PositionLogprobs, PromptPart

from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_server.convert import TokenBytes, to_prompt_logprobs, to_prompt_parts
from antiphon_server.validation import ResolvedConfig

MAX_PART_ENTRIES: Final = 4096
"""Log-probabilities that are worked out at a time: far below a message's bound, as a rule."""
MAX_PART_BYTES: Final = 1 << 20

_BURST_ENTRIES: Final = 512
"""Log-probabilities beyond which work on them leaves the event loop."""


class PromptReport:
    """The report of one prompt, part by part. Used by one task at a time.

    Without log-probabilities it is there at once. With them each part waits until the engine has
    computed what it tells of, and its token ids come with them.
    """

    def __init__(
        self, prompt_ids: Sequence[int], config: ResolvedConfig, tokenizer: TokenBytes
    ) -> None:
        self._prompt_ids = prompt_ids
        self._wants_ids = config.want_prompt_token_ids
        self._num_top = config.prompt_logprobs
        self._tokenizer = tokenizer
        self._position = 0  # That is told next.

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is to come of the engine."""
        return self._num_top is None or self._position == len(self._prompt_ids)

    def at_start(self) -> Iterator[PromptPart]:
        """Yields what can be told before the engine has said anything."""
        if self._num_top is None:
            if self._wants_ids:
                yield from to_prompt_parts(self._prompt_ids)
        elif len(self._prompt_ids) == 1:
            # The engine has nothing to say of it.
            yield from self._parts([PositionLogprobs()])

    def cut(self, news: Sequence[PromptLogprobs]) -> Iterator[PromptLogprobs]:
        """Yields what the engine told in pieces for `parts_of`."""
        most = max(1, MAX_PART_ENTRIES // (2 + (self._num_top or 0)))
        for part in news:
            yield from part.split(most)

    def is_burst(self, piece: PromptLogprobs) -> bool:
        """Whether a piece is so large that work on it would hold up others."""
        return piece.num_positions * (2 + piece.num_top) > _BURST_ENTRIES

    def parts_of(self, piece: PromptLogprobs) -> list[PromptPart]:
        """Returns the parts that tell of a piece, in order. May run on any thread."""
        assert piece.first_position == max(1, self._position), "prompts are told without gaps"
        own_ids = self._prompt_ids[
            piece.first_position : piece.first_position + piece.num_positions
        ]
        entries = to_prompt_logprobs(own_ids, piece, self._tokenizer)
        if not self._position:
            # Nothing stands before the first token that could have foretold it.
            entries = [PositionLogprobs(), *entries]
        return list(self._parts(entries))

    def _parts(self, entries: Sequence[PositionLogprobs]) -> Iterator[PromptPart]:
        """Yields the next positions, in as many parts as fit their messages."""
        part = PromptPart(first_position=self._position, logprobs=entries)
        if self._wants_ids:
            part.token_ids.extend(self._prompt_ids[self._position : self._position + len(entries)])
        if part.ByteSize() <= MAX_PART_BYTES or len(entries) == 1:
            self._position += len(entries)
            yield part
            return
        middle = len(entries) // 2
        yield from self._parts(entries[:middle])
        yield from self._parts(entries[middle:])
