"""Neighbouring deltas of one part: one text, which stays cut at each of their numbers."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from antiphon.v1.types_pb2 import OUTPUT_CHANNEL_CONTENT, Delta, OutputChannel

_NUMBER_BYTES: Final = 2 * array("I").itemsize
"""What a number takes beside its text and tokens."""


_ANSWER: Final = (0, OUTPUT_CHANNEL_CONTENT, "")


class DeltaRun:
    """Deltas that follow each other and belong to one output, channel and call.

    Their texts lie end to end, and so do their tokens as they stand on the wire; two arrays say
    where each ends. So a run takes little more than what it says, and a reader may begin anywhere.
    """

    __slots__ = (
        "_part",
        "_text",
        "_text_ends",
        "_tokens",
        "_tokens_ends",
        "_tool_name",
        "first_sequence",
        "is_answer",
    )

    def __init__(self, first_sequence: int, delta: Delta) -> None:
        """Makes a run of no deltas, for a first one; append that."""
        self.first_sequence: Final = first_sequence
        self._part: Final = _part(delta)
        self.is_answer: Final = self._part == _ANSWER
        """Whether its parts are the first output's answer."""
        self._tool_name = delta.tool_name
        self._text = bytearray()
        self._tokens = bytearray()
        self._text_ends = array("I")
        self._tokens_ends = array("I")  # Empty where no delta has tokens.

    @property
    def last_sequence(self) -> int:
        """The last delta's number."""
        return self.first_sequence + len(self._text_ends) - 1

    @property
    def call_id(self) -> str:
        """The tool call that it is a part of; empty: it is of none."""
        return self._part[2]

    def continues_with(self, delta: Delta) -> bool:
        """Whether a delta may be appended."""
        return not delta.tool_name and self._part == _part(delta)

    def append(self, delta: Delta) -> int:
        """Adds a delta that continues the run, and returns how many bytes more it takes."""
        tokens = b""
        if delta.token_ids or delta.logprobs:
            kept = Delta(token_ids=delta.token_ids, logprobs=delta.logprobs)
            # Lists of messages that follow each other read as one message with all of them.
            tokens = kept.SerializeToString()
            if not self._tokens:
                self._tokens_ends.extend([0] * len(self._text_ends))
            self._tokens += tokens
        return len(tokens) + self.append_text(delta.text)

    def append_text(self, text: str) -> int:
        """`append` for a delta that has nothing but text."""
        data = text.encode()
        self._text += data
        self._text_ends.append(len(self._text))
        if self._tokens:
            self._tokens_ends.append(len(self._tokens))
        return len(data) + _NUMBER_BYTES

    def size_bytes(self, num_deltas: int) -> int:
        """Returns what the first so many deltas take."""
        if not num_deltas:
            return 0
        text_end, tokens_end = self._ends(num_deltas)
        return text_end + tokens_end + num_deltas * _NUMBER_BYTES

    def text_through(self, sequence: int) -> str:
        """Returns the text up to and with a number."""
        return self._text[: self._text_ends[sequence - self.first_sequence]].decode()

    def sizes_through(self, sequence: int) -> Iterator[int]:
        """Yields how many characters each delta has, up to and with a number."""
        start = 0
        for end in self._text_ends[: sequence + 1 - self.first_sequence]:
            yield len(self._text[start:end].decode())
            start = end

    def join(self, after: int, max_bytes: int) -> tuple[Delta, int]:
        """Returns what follows a number as one delta, and the last number in it.

        Args:
            after: A number of the run, or the one before it.
            max_bytes: What is not passed unless a single delta does.
        """
        start = after + 1 - self.first_sequence
        begun_bytes = self.size_bytes(start)
        counts = range(1, len(self._text_ends) + 1)
        fits = bisect_right(counts, begun_bytes + max_bytes, lo=start, key=self.size_bytes)
        end = max(start + 1, fits)
        text_start, tokens_start = self._ends(start)
        text_end, tokens_end = self._ends(end)
        output_index, channel, call_id = self._part
        delta = Delta(
            output_index=output_index,
            channel=channel,
            call_id=call_id,
            text=self._text[text_start:text_end].decode(),
            tool_name="" if start else self._tool_name,
        )
        if tokens_end > tokens_start:
            delta.MergeFromString(bytes(self._tokens[tokens_start:tokens_end]))
        return delta, self.first_sequence + end - 1

    def _ends(self, num_deltas: int) -> tuple[int, int]:
        """Returns where text and tokens of the first so many deltas end, in bytes."""
        if not num_deltas:
            return 0, 0
        last = num_deltas - 1
        return self._text_ends[last], self._tokens_ends[last] if self._tokens_ends else 0


def _part(delta: Delta) -> "tuple[int, OutputChannel.ValueType, str]":
    return delta.output_index, delta.channel, delta.call_id
