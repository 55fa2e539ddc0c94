"""The news of many requests on their way to one reader, in shared frames."""

from collections import deque
from collections.abc import Callable
from typing import Final

from antiphon.v1.inference_pb2 import MultiplexGenerateResponse, TaggedEvent

from antiphon_server.answer_size import MAX_ANSWER_BYTES

_EVENT_OVERHEAD_BYTES: Final = 16
"""What an event takes in a frame beside itself, at most."""


class Outbox:
    """Joins what has come since the last read into as few frames as their bound allows.

    1. Events leave in the order in which they came, each in one frame.
    2. It turns full at its bound, and has room again once it is half empty. It never refuses: who
       adds looks at `full` first, so it holds the bound and what each of them has added since.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        on_full: Callable[[], None],
        on_room: Callable[[], None],
        max_frame_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Sets the bounds, and whom to tell when it turns full and when that is over."""
        self._max_bytes: Final = max_bytes
        self._max_frame_bytes: Final = max_frame_bytes
        self._on_full: Final = on_full
        self._on_room: Final = on_room
        self._frames: deque[MultiplexGenerateResponse] = deque()
        self._sizes_bytes: deque[int] = deque()
        self._size_bytes = 0
        self._full = False

    @property
    def full(self) -> bool:
        """Whether nothing should be added now."""
        return self._full

    @property
    def size_bytes(self) -> int:
        """What it holds."""
        return self._size_bytes

    def add(self, event: TaggedEvent) -> None:
        """Adds an event behind those that wait."""
        size_bytes = event.ByteSize() + _EVENT_OVERHEAD_BYTES
        if not self._frames or self._sizes_bytes[-1] + size_bytes > self._max_frame_bytes:
            self._frames.append(MultiplexGenerateResponse())
            self._sizes_bytes.append(0)
        self._frames[-1].events.append(event)
        self._sizes_bytes[-1] += size_bytes
        self._size_bytes += size_bytes
        if not self._full and self._size_bytes >= self._max_bytes:
            self._full = True
            self._on_full()

    def take(self) -> MultiplexGenerateResponse | None:
        """Returns the next frame; None: there is nothing."""
        if not self._frames:
            return None
        self._size_bytes -= self._sizes_bytes.popleft()
        frame = self._frames.popleft()
        if self._full and self._size_bytes <= self._max_bytes // 2:
            self._full = False
            self._on_room()
        return frame

    def clear(self) -> None:
        """Drops all that waits."""
        self._frames.clear()
        self._sizes_bytes.clear()
        self._size_bytes = 0
