"""Sessions as text: JSON Lines that another server, or the same, makes a session of again.

The first line is the session, then comes one line a turn of its history, and the last line says
how many there were. Every line is an object with one of the keys `session`, `turn` and `end`; the
first has `format` and `version` beside it. What stands in them is the contract's own JSON.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from antiphon.v1 import session_pb2, types_pb2
from google.protobuf import json_format
from google.protobuf.message import Message

FORMAT: Final = "antiphon.session"
VERSION: Final = 1

MAX_PART_BYTES: Final = 1 << 20
MAX_PART_ITEMS: Final = 1024
"""How much history one call brings to a server."""

_KEPT: Final = (
    "model",
    "instructions",
    "tools",
    "defaults",
    "history_policy",
    "retention",
    "labels",
    "idle_ttl",
)
"""What of a session holds for one that is made of it."""

_MessageT = TypeVar("_MessageT", bound=Message)


class ArchiveError(ValueError):
    """What was read is no session; names the line."""

    def __init__(self, line_number: int, problem: str) -> None:
        super().__init__(f"line {line_number}: {' '.join(problem.split())}")
        self.line_number = line_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A session and the turns of its history, as they were written."""

    session: session_pb2.Session
    turns: tuple[session_pb2.Turn, ...]

    @classmethod
    def read(cls, lines: Iterable[str]) -> "Archive":
        """Returns what the lines hold.

        Raises:
            ArchiveError: they are no whole session of a version that is known here.
        """
        session: session_pb2.Session | None = None
        turns: list[session_pb2.Turn] = []
        number = 0
        for number, line in enumerate(lines, 1):
            entry = _entry(number, line)
            if number == 1:
                _check_format(entry)
                session = _parsed(number, entry, "session", session_pb2.Session())
            elif "end" in entry:
                _check_end(number, entry["end"], num_turns=len(turns))
                break
            else:
                turns.append(_parsed(number, entry, "turn", session_pb2.Turn()))
        else:
            raise ArchiveError(
                number + 1, "the end is missing, so something is lost; export it again"
            )
        assert session is not None, "only a line behind the first breaks the loop"
        return cls(session=session, turns=tuple(turns))

    @property
    def settings(self) -> session_pb2.Session:
        """What a session that is made of it begins with."""
        kept = session_pb2.Session()
        for field, value in self.session.ListFields():
            if field.name in _KEPT:
                holder = session_pb2.Session(**{field.name: value})
                kept.MergeFrom(holder)
        return kept

    def parts(self) -> Iterator[list[types_pb2.Item]]:
        """Yields the history's items, as many at a time as one call may bring."""
        part: list[types_pb2.Item] = []
        size_bytes = 0
        for turn in self.turns:
            for item in (*turn.input, *_items_of(turn.output)):
                is_full = size_bytes + item.ByteSize() > MAX_PART_BYTES
                if part and (is_full or len(part) == MAX_PART_ITEMS):
                    yield part
                    part, size_bytes = [], 0
                part.append(item)
                size_bytes += item.ByteSize()
        if part:
            yield part


async def archive_lines(
    session: session_pb2.Session, turns: AsyncIterator[session_pb2.Turn]
) -> AsyncIterator[str]:
    """Yields a session and the turns of its history as lines, without line ends."""
    begin = {"format": FORMAT, "version": VERSION, "session": _plain(session)}
    yield json.dumps(begin, ensure_ascii=False)
    num_turns = 0
    async for turn in turns:
        num_turns += 1
        yield json.dumps({"turn": _plain(turn)}, ensure_ascii=False)
    yield json.dumps({"end": {"num_turns": num_turns}})


def _items_of(output: types_pb2.Output) -> Iterator[types_pb2.Item]:
    """Yields an answer as the items that a history has of it."""
    if output.text or output.reasoning:
        message = types_pb2.ChatMessage(
            role=types_pb2.ROLE_ASSISTANT, text=output.text, reasoning=output.reasoning
        )
        yield types_pb2.Item(message=message)
    for call in output.tool_calls:
        yield types_pb2.Item(tool_call=call)


def _plain(message: Message) -> Mapping[str, object]:
    plain = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return cast(Mapping[str, object], plain)


def _entry(number: int, line: str) -> Mapping[str, object]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ArchiveError(number, f"is no JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ArchiveError(number, f"must be an object, is {type(entry).__name__}")
    return entry


def _check_format(entry: Mapping[str, object]) -> None:
    if entry.get("format") != FORMAT:
        raise ArchiveError(
            1,
            f"`format` must be {FORMAT!r}, is {entry.get('format')!r}; is it an exported session?",
        )
    if entry.get("version") != VERSION:
        raise ArchiveError(
            1,
            f"`version` must be {VERSION}, is {entry.get('version')!r};"
            " another release wrote it, read it with that one",
        )


def _check_end(number: int, end: object, *, num_turns: int) -> None:
    told = end.get("num_turns") if isinstance(end, dict) else None
    if told != num_turns:
        raise ArchiveError(
            number, f"`end.num_turns` is {told!r}, but {num_turns} turns came; export it again"
        )


def _parsed(number: int, entry: Mapping[str, object], key: str, message: _MessageT) -> _MessageT:
    value = entry.get(key)
    if not isinstance(value, dict):
        raise ArchiveError(number, f"`{key}` must be an object, is {value!r:.80}")
    try:
        return json_format.ParseDict(value, message)
    except json_format.ParseError as error:
        raise ArchiveError(number, f"`{key}` is none: {error}") from None
