"""An output's text, taken apart as it comes: reasoning, answer, tool calls."""

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon_server.text.tool_formats import ToolFormat

_MAX_HEAD_CHARACTERS: Final = 1024
"""Of what surrounds a call's arguments; what is longer is no call."""
_BLANKS: Final = " \t\r\n"
"""What the engine, too, takes for a part of the marker that it stands behind."""
_STRUCTURE: Final = re.compile(r'["{}]')
_STRING_END: Final = re.compile(r'["\\]')


class Channel(enum.Enum):
    """What a part of an output is."""

    CONTENT = enum.auto()
    REASONING = enum.auto()
    TOOL_CALL = enum.auto()


@dataclass(slots=True, kw_only=True)
class Part:
    """Text of one channel, or the end of a call. Not frozen, since many are made."""

    channel: Channel
    text: str
    end: int
    """Characters of the whole output up to the part's end."""
    call_index: int = -1
    """TOOL_CALL: which call, from 0."""
    tool_name: str = ""
    """TOOL_CALL: the tool, on the call's first part."""
    completes_call: bool = False
    """TOOL_CALL: the call has ended here; the part has no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarkers:
    """What a model's thinking stands between."""

    opener: str = "<think>"
    closer: str = "</think>"


class ThinkingStart(enum.Enum):
    """Whether an output begins with thinking."""

    NEVER = enum.auto()
    BY_MODEL = enum.auto()
    """Where the model writes the opening marker first."""
    OPENED = enum.auto()
    """The prompt has opened it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """What an output may consist of."""

    thinking: ThinkingStart = ThinkingStart.NEVER
    reasoning: ReasoningMarkers = ReasoningMarkers()
    tools: ToolFormat | None = None
    """None: calls are not looked for."""
    calls_only: bool = False
    """Whether an answer has no text, so that what may begin a call does."""

    @property
    def is_plain(self) -> bool:
        """Whether all of it is answer."""
        return self.thinking is ThinkingStart.NEVER and self.tools is None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be single tokens, and count even where such tokens don't show."""
        thinks = self.thinking is not ThinkingStart.NEVER
        own = (self.reasoning.opener, self.reasoning.closer) if thinks else ()
        return own + (self.tools.markers if self.tools else ())


class _State(enum.Enum):
    MAY_THINK = enum.auto()
    BEFORE_THINKING = enum.auto()
    THINKING = enum.auto()
    BEFORE_ANSWER = enum.auto()
    ANSWER_START = enum.auto()
    ANSWER = enum.auto()
    CALL_HEAD = enum.auto()
    ARGUMENTS = enum.auto()
    CALL_TAIL = enum.auto()
    BEHIND_CALL = enum.auto()
    BEHIND_CALLS = enum.auto()
    BROKEN = enum.auto()


_BEFORE_CALLS: Final = frozenset({_State.ANSWER_START, _State.ANSWER})


class OutputChannels:
    """Reads one output. What its parts say doesn't depend on how the text was cut.

    It holds back what may be the beginning of a marker, and nothing else but what surrounds the
    arguments of a call. Markers, and blanks behind them, are in no part.

    Attributes:
        thinking_end: Characters up to the end of the thinking, its marker included; None: it has
            not ended, or there was none.
        calls_start: Characters before the first call; None: there is none.
        open_call_start: Characters before a call that has begun and not ended.
        is_broken: What should have been a call was none; it was told as a part of the answer.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        """Reads an output that may consist of what the spec says."""
        self.thinking_end: int | None = None
        self.calls_start: int | None = None
        self.open_call_start: int | None = None
        self.is_broken = False
        self._reasoning = spec.reasoning
        self._tools = spec.tools
        self._calls_only = spec.calls_only
        self._openers = _with_lead(spec.tools) if spec.tools else ()
        self._buffer = ""
        self._num_decided = 0
        self._num_calls = 0
        self._tool_name = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._parts: list[Part] = []
        self._state = {
            ThinkingStart.NEVER: _State.ANSWER_START,
            ThinkingStart.BY_MODEL: _State.MAY_THINK,
            ThinkingStart.OPENED: _State.BEFORE_THINKING,
        }[spec.thinking]
        self._readers: Mapping[_State, Callable[[], bool]] = {
            _State.MAY_THINK: self._read_opener_of_thinking,
            _State.BEFORE_THINKING: lambda: self._skip_blanks(_State.THINKING),
            _State.THINKING: self._read_thinking,
            _State.BEFORE_ANSWER: lambda: self._skip_blanks(_State.ANSWER_START),
            _State.ANSWER_START: self._read_answer_start,
            _State.ANSWER: self._read_answer,
            _State.CALL_HEAD: self._read_head,
            _State.ARGUMENTS: self._read_arguments,
            _State.CALL_TAIL: self._read_tail,
            _State.BEHIND_CALL: self._read_separator,
            _State.BEHIND_CALLS: self._read_rest,
            _State.BROKEN: self._read_broken,
        }

    @property
    def reads_calls(self) -> bool:
        """Whether calls are looked for."""
        return self._tools is not None

    @property
    def is_thinking(self) -> bool:
        """Whether the thinking has not ended."""
        return self._state in (_State.BEFORE_THINKING, _State.THINKING)

    def push(self, text: str) -> Sequence[Part]:
        """Returns what more text makes certain."""
        self._buffer += text
        self._parts = []
        while self._buffer and self._readers[self._state]():
            pass
        return self._parts

    def finish(self) -> Sequence[Part]:
        """Returns what is held back. A call that has not ended is dropped."""
        self._parts = []
        if self._state is _State.THINKING:
            self._tell(Channel.REASONING, len(self._buffer))
        elif self._calls_only and self._buffer and self._state in _BEFORE_CALLS:
            self._begin_call()
        elif self._state in (_State.MAY_THINK, _State.ANSWER_START, _State.ANSWER):
            self._tell(Channel.CONTENT, len(self._buffer))
        elif self._state is _State.BEHIND_CALL and self._buffer.strip(_BLANKS):
            self.open_call_start = self._num_decided
        return self._parts

    def _read_opener_of_thinking(self) -> bool:
        rest = self._buffer.lstrip(_BLANKS)
        opener = self._reasoning.opener
        if rest.startswith(opener):
            self._drop(len(self._buffer) - len(rest) + len(opener))
            self._state = _State.BEFORE_THINKING
            return True
        if opener.startswith(rest):
            return False
        self._state = _State.ANSWER_START
        return True

    def _read_thinking(self) -> bool:
        closer = self._reasoning.closer
        start = self._buffer.find(closer)
        if start < 0:
            self._tell(Channel.REASONING, len(self._buffer) - _num_begun(self._buffer, (closer,)))
            return False
        self._tell(Channel.REASONING, start)
        self._drop(len(closer))
        self.thinking_end = self._num_decided
        self._state = _State.BEFORE_ANSWER
        return True

    def _skip_blanks(self, then: _State) -> bool:
        self._drop(len(self._buffer) - len(self._buffer.lstrip(_BLANKS)))
        if self._buffer:
            self._state = then
        return bool(self._buffer)

    def _read_answer_start(self) -> bool:
        bare = self._tools.bare_opener if self._tools else ""
        rest = self._buffer.lstrip(_BLANKS) if bare else ""
        if bare and rest.startswith(bare):
            self._drop(len(self._buffer) - len(rest))
            self._begin_call()
            return True
        if bare and bare.startswith(rest):
            return False
        self._state = _State.ANSWER
        return True

    def _read_answer(self) -> bool:
        start, size = _find_first(self._buffer, self._openers)
        if not size:
            self._tell(Channel.CONTENT, len(self._buffer) - _num_begun(self._buffer, self._openers))
            return False
        self._tell(Channel.CONTENT, start)
        self._begin_call()
        self._drop(size)
        return True

    def _begin_call(self) -> None:
        if self.calls_start is None:
            self.calls_start = self._num_decided
        self.open_call_start = self._num_decided
        self._state = _State.CALL_HEAD

    def _read_head(self) -> bool:
        assert self._tools is not None
        found = self._tools.head.match(self._buffer)
        if found is None:
            return self._break_if_long()
        self._tool_name = found["name"]
        self._drop(found.end())
        self._state = _State.ARGUMENTS
        return True

    def _read_arguments(self) -> bool:
        end = self._find_end_of_object()
        self._tell(Channel.TOOL_CALL, len(self._buffer) if end is None else end)
        if end is None:
            return False
        self._state = _State.CALL_TAIL
        # A tail may be empty, and no more text come.
        return self._read_tail()

    def _read_tail(self) -> bool:
        assert self._tools is not None
        found = self._tools.tail.match(self._buffer)
        if found is None:
            return self._break_if_long()
        self._drop(found.end())
        self._parts.append(
            Part(
                channel=Channel.TOOL_CALL,
                text="",
                end=self._num_decided,
                call_index=self._num_calls,
                completes_call=True,
            )
        )
        self._num_calls += 1
        self.open_call_start = None
        self._state = _State.BEHIND_CALL
        return True

    def _read_separator(self) -> bool:
        assert self._tools is not None
        separator, closer = self._tools.separator, self._tools.closer
        rest = self._buffer.lstrip(_BLANKS)
        if rest.startswith(separator):
            self.open_call_start = self._num_decided
            self._drop(len(self._buffer) - len(rest) + len(separator))
            self._state = _State.CALL_HEAD
        elif closer and rest.startswith(closer):
            self._drop(len(self._buffer) - len(rest) + len(closer))
            self._state = _State.BEHIND_CALLS
        elif separator.startswith(rest):
            return False
        else:
            self._break()
        return True

    def _read_rest(self) -> bool:
        rest = self._buffer.lstrip(_BLANKS)
        self._drop(len(self._buffer) - len(rest))
        if rest:
            self._break()
        return bool(rest)

    def _read_broken(self) -> bool:
        self._tell(Channel.CONTENT, len(self._buffer))
        return False

    def _break_if_long(self) -> bool:
        if len(self._buffer) <= _MAX_HEAD_CHARACTERS:
            return False
        self._break()
        return True

    def _break(self) -> None:
        self.is_broken = True
        self._state = _State.BROKEN

    def _find_end_of_object(self) -> int | None:
        """Returns where in the buffer the arguments' object ends, and notes how deep it is."""
        position, text = 0, self._buffer
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            found = (_STRING_END if self._in_string else _STRUCTURE).search(text, position)
            if found is None:
                return None
            position = found.end()
            match found.group():
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._escaped = True
                case "{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        return position
        return None

    def _tell(self, channel: Channel, size: int) -> None:
        """Makes a part of the buffer's first characters."""
        if not size:
            return
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        self._num_decided += size
        part = Part(channel=channel, text=text, end=self._num_decided)
        if channel is Channel.TOOL_CALL:
            part.call_index = self._num_calls
            part.tool_name, self._tool_name = self._tool_name, ""
        self._parts.append(part)

    def _drop(self, size: int) -> None:
        """Passes over the buffer's first characters."""
        self._buffer = self._buffer[size:]
        self._num_decided += size


def _with_lead(tools: ToolFormat) -> tuple[str, ...]:
    """Returns the texts that may begin a call, longest first."""
    return (tools.lead + tools.opener, tools.opener) if tools.lead else (tools.opener,)


def _find_first(text: str, markers: Sequence[str]) -> tuple[int, int]:
    """Returns where the first marker stands and its size, the longest of those that begin there."""
    found = [(start, -len(marker)) for marker in markers if (start := text.find(marker)) >= 0]
    start, size = min(found, default=(0, 0))
    return start, -size


def _num_begun(text: str, markers: Sequence[str]) -> int:
    """Returns how many of the text's last characters may begin a marker."""
    longest = max(map(len, markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-size:]) for marker in markers):
            return size
    return 0
