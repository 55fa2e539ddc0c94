"""Frames that wait to be written, and those that were written and not answered."""

import asyncio
from dataclasses import dataclass
from typing import Final

from antiphon.v1 import session_pb2

MAX_UNANSWERED_FRAMES: Final = 64
"""How many frames a session keeps for their answers; beyond it, sending waits."""

_STARTS: Final = ("generate", "append")


@dataclass(slots=True)
class _Entry:
    frame: session_pb2.ConverseRequest
    turn_id: str
    is_start: bool
    is_written: bool = False


class Outbox:
    """Keeps every frame until it is answered, in order, so that a new stream gets it again."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._room = asyncio.Event()
        self.holds_starts = False
        """Whether frames that start turns wait for the next stream."""

    def __len__(self) -> int:
        return len(self._entries)

    async def wait_for_room(self) -> None:
        """Waits until another frame may be put in."""
        while len(self._entries) >= MAX_UNANSWERED_FRAMES:
            self._room.clear()
            await self._room.wait()

    def put(self, frame: session_pb2.ConverseRequest, turn_id: str) -> None:
        """Adds a frame about this turn, behind the others."""
        is_start = frame.WhichOneof("frame") in _STARTS
        self._entries[frame.frame_id] = _Entry(frame, turn_id, is_start)

    def next_frame(self) -> session_pb2.ConverseRequest | None:
        """Returns the first frame that is to be written now, and counts it as written."""
        held: set[str] = set()
        for entry in self._entries.values():
            if entry.is_written:
                continue
            if entry.turn_id in held or (entry.is_start and self.holds_starts):
                held.add(entry.turn_id)
                continue
            entry.is_written = True
            return entry.frame
        return None

    @property
    def awaits_answers(self) -> bool:
        """Whether a frame that starts a turn was written and not answered."""
        return any(entry.is_start and entry.is_written for entry in self._entries.values())

    def keeps_start_of(self, turn_id: str) -> bool:
        """Returns whether the frame that starts this turn is not answered."""
        entry = self._entries.get(turn_id)
        return entry is not None and entry.is_start

    def answered(self, frame_id: str) -> None:
        """Forgets a frame that has its answer."""
        self._entries.pop(frame_id, None)
        self._room.set()

    def ended(self, turn_id: str) -> None:
        """Forgets all frames about a turn that has ended."""
        entries = self._entries.items()
        self._entries = {key: entry for key, entry in entries if entry.turn_id != turn_id}
        self._room.set()

    def end(self) -> None:
        """Forgets all frames, and lets nobody wait for room any more."""
        self._entries.clear()
        self._room.set()

    def write_again(self) -> None:
        """Makes every frame that is not answered one that is to be written."""
        self.holds_starts = False
        for entry in self._entries.values():
            entry.is_written = False

    def hold(self, frame_id: str) -> None:
        """Keeps a frame, and all that start turns, for the next stream."""
        self.holds_starts = True
        entry = self._entries.get(frame_id)
        if entry is not None:
            entry.is_written = False
