"""Events on their way to one reader, beside a naive model."""

from collections import deque

from antiphon.v1.inference_pb2 import StreamGenerateResponse, TaggedEvent
from antiphon.v1.types_pb2 import Delta
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.services.outbox import Outbox

MAX_BYTES = 2000
MAX_FRAME_BYTES = 1000


def event(tag: int, size: int) -> TaggedEvent:
    return TaggedEvent(
        tag=tag, generation=StreamGenerateResponse(delta=Delta(text="x" * size, output_index=tag))
    )


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.none(), st.integers(0, 900)), max_size=60))
def test_events_leave_in_order_in_bounded_frames_and_fullness_is_told_once(
    moves: list[int | None],
) -> None:
    told: list[str] = []
    outbox = Outbox(
        max_bytes=MAX_BYTES,
        on_full=lambda: told.append("full"),
        on_room=lambda: told.append("room"),
        max_frame_bytes=MAX_FRAME_BYTES,
    )
    waiting: deque[int] = deque()
    full = False
    for number, size in enumerate(moves):
        if size is not None:
            outbox.add(event(number, size))
            waiting.append(number)
            full = full or outbox.size_bytes >= MAX_BYTES
        else:
            frame = outbox.take()
            assert (frame is None) == (not waiting)
            if frame is not None:
                assert frame.ByteSize() <= MAX_FRAME_BYTES
                assert [e.tag for e in frame.events] == [waiting.popleft() for _ in frame.events]
            full = full and outbox.size_bytes > MAX_BYTES // 2
        assert outbox.full is full
        assert told == ["full", "room"] * (len(told) // 2) + ["full"] * full
    while frame := outbox.take():
        assert [e.tag for e in frame.events] == [waiting.popleft() for _ in frame.events]
    assert not waiting
    assert outbox.size_bytes == 0
    assert not outbox.full


def test_event_larger_than_a_frame_goes_alone() -> None:
    outbox = Outbox(max_bytes=1 << 20, on_full=int, on_room=int, max_frame_bytes=MAX_FRAME_BYTES)
    for tag, size in enumerate([10, 5000, 10]):
        outbox.add(event(tag, size))

    frames = [outbox.take() for _ in range(4)]

    assert [[e.tag for e in frame.events] for frame in frames[:3] if frame] == [[0], [1], [2]]
    assert frames[3] is None


def test_nothing_waits_behind_a_clearing() -> None:
    told: list[str] = []
    outbox = Outbox(max_bytes=100, on_full=int, on_room=lambda: told.append("room"))
    outbox.add(event(1, 200))

    outbox.clear()

    assert outbox.take() is None
    assert outbox.size_bytes == 0
    assert not told
