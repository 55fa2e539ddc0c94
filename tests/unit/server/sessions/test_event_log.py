import asyncio

import pytest
from antiphon.v1.session_pb2 import TurnAccepted, TurnCompleted, TurnCursor, TurnEvent
from antiphon.v1.types_pb2 import (
    FINISH_REASON_CANCELLED,
    FINISH_REASON_STOP,
    OUTPUT_CHANNEL_CONTENT,
    OUTPUT_CHANNEL_REASONING,
    Delta,
    GenerationStarted,
)
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.sessions.event_log import EventLog, EventReader, ReaderSpec
from antiphon_server.sessions.numbered_events import MAX_JOINED_BYTES


def delta(text: str) -> TurnEvent:
    return TurnEvent(delta=Delta(text=text, token_ids=[len(text)]))


def begun() -> EventLog:
    log = EventLog("t", 3)
    log.append(TurnEvent(accepted=TurnAccepted(frame_id="f", num_before=1)))
    log.append(TurnEvent(started=GenerationStarted(prompt_tokens=4)))
    return log


def answer(text: str) -> TurnEvent:
    return TurnEvent(delta=Delta(channel=OUTPUT_CHANNEL_CONTENT, text=text))


PIECES = st.one_of(
    st.text(min_size=1, max_size=3).map(answer),
    st.text(min_size=1, max_size=3).map(
        lambda text: TurnEvent(delta=Delta(channel=OUTPUT_CHANNEL_REASONING, text=text))
    ),
    st.text(min_size=1, max_size=3).map(
        lambda text: TurnEvent(
            delta=Delta(channel=OUTPUT_CHANNEL_CONTENT, text=text, token_ids=[7])
        )
    ),
)


def read_all(reader: EventReader) -> list[TurnEvent]:
    events = []
    while event := reader.read():
        events.append(event)
    return events


def check_numbers(events: list[TurnEvent]) -> None:
    expected = 1
    for event in events:
        assert (event.turn_id, event.epoch) == ("t", 3)
        assert event.first_sequence == expected
        assert event.sequence >= event.first_sequence
        expected = event.sequence + 1


@given(st.lists(st.tuples(PIECES, st.booleans()), max_size=30))
def test_text_alone_is_told_as_the_delta_that_it_stands_for(pieces):
    by_delta, by_text = begun(), begun()
    logs = (by_delta, by_text)
    readers = [log.open_reader(asyncio.Event()) for log in logs]
    told: list[list[TurnEvent]] = [[], []]

    for piece, reads in pieces:
        by_delta.append(piece)
        if piece == answer(piece.delta.text):
            by_text.append_text(piece.delta.text)
        else:
            by_text.append(piece)
        if reads:
            for events, reader in zip(told, readers, strict=True):
                events.extend(read_all(reader))

    for events, reader in zip(told, readers, strict=True):
        events.extend(read_all(reader))
        check_numbers(events)
    assert told[0] == told[1]
    assert by_delta.size_bytes == by_text.size_bytes
    assert by_delta.output() == by_text.output()


def test_what_was_read_stays_as_it_was_whatever_comes():
    log = begun()
    readers = [log.open_reader(asyncio.Event(), ReaderSpec(frame_id=name)) for name in "ab"]

    told = [reader.read() for reader in readers]

    assert [event.accepted.frame_id for event in told] == ["a", "b"]
    assert read_all(log.open_reader(asyncio.Event()))[0].accepted.frame_id == "f"


def test_a_reader_that_falls_behind_gets_deltas_joined():
    log = begun()
    reader = log.open_reader(asyncio.Event())
    for piece in ("a", "bb", "ccc"):
        log.append(delta(piece))

    events = read_all(reader)

    check_numbers(events)
    assert [(e.first_sequence, e.sequence) for e in events] == [(1, 1), (2, 2), (3, 5)]
    assert events[-1].delta.text == "abbccc"
    assert list(events[-1].delta.token_ids) == [1, 2, 3]


def test_accepted_names_the_frame_of_the_reader():
    log = begun()

    told = [
        log.open_reader(asyncio.Event(), ReaderSpec(frame_id=name)).read()
        for name in ("f", "g", "", None)
    ]

    assert [event.accepted.frame_id for event in told if event] == ["f", "g", "", "f"]
    assert all(event and event.accepted.num_before == 1 for event in told)


def test_readers_are_woken_by_news_and_finish_with_the_terminal_event():
    log = begun()
    wake = asyncio.Event()
    reader = log.open_reader(wake)
    assert wake.is_set()
    read_all(reader)
    wake.clear()

    log.append(TurnEvent(completed=TurnCompleted()))

    assert wake.is_set()
    assert not reader.finished
    read_all(reader)
    assert reader.finished


def test_characters_are_counted_up_to_each_number():
    log = begun()
    pieces = [(OUTPUT_CHANNEL_CONTENT, text) for text in ("a", "éé", "", "ccc")]
    pieces += [(OUTPUT_CHANNEL_REASONING, "hm"), (OUTPUT_CHANNEL_CONTENT, "d")]
    for channel, text in pieces:
        log.append(TurnEvent(delta=Delta(channel=channel, text=text)))

    counts = log.characters_through(log.last_sequence)

    assert counts == [0, 0, 0, 1, 3, 3, 6, 8, 9]
    assert counts == [log.characters_at(number) for number in range(log.last_sequence + 1)]
    assert log.characters_through(4) == counts[:5]


def test_a_long_answer_keeps_few_events_though_nobody_reads():
    log = begun()
    for _ in range(20_000):
        log.append(delta("word "))

    told = read_all(log.open_reader(asyncio.Event()))
    assert len(told) <= 6
    assert "".join(e.delta.text for e in told) == "word " * 20_000


def replayed(finish_reason: int = FINISH_REASON_STOP) -> EventLog:
    """A log whose output came in two pieces that stand for three numbers each."""
    events = [
        TurnEvent(first_sequence=1, sequence=1, accepted=TurnAccepted()),
        TurnEvent(first_sequence=2, sequence=4, delta=Delta(text="one ")),
        TurnEvent(first_sequence=5, sequence=7, delta=Delta(text="two")),
        TurnEvent(
            first_sequence=8, sequence=8, completed=TurnCompleted(finish_reason=finish_reason)
        ),
    ]
    return EventLog.restore("t", 3, events)


@pytest.mark.parametrize(
    ("epoch", "sequence", "kinds"),
    [
        (3, 0, ["accepted", "delta", "delta", "completed"]),
        (0, 0, ["accepted", "delta", "delta", "completed"]),
        (3, 1, ["delta", "delta", "completed"]),
        (3, 4, ["reset", "accepted", "delta", "delta", "completed"]),
        (3, 7, ["completed"]),
        (3, 8, []),
        (3, 5, ["reset", "accepted", "delta", "delta", "completed"]),
        (3, 9, ["reset", "accepted", "delta", "delta", "completed"]),
        (2, 1, ["reset", "accepted", "delta", "delta", "completed"]),
    ],
)
def test_a_cursor_gets_what_follows_or_is_reset(epoch: int, sequence: int, kinds: list[str]):
    cursor = TurnCursor(turn_id="t", epoch=epoch, sequence=sequence)

    reader = replayed().open_reader(asyncio.Event(), ReaderSpec(cursor=cursor))
    events = read_all(reader)

    assert [event.WhichOneof("event") for event in events] == kinds
    assert all((event.turn_id, event.epoch) == ("t", 3) for event in events)
    assert reader.finished


def test_reader_of_a_turn_that_was_stopped_may_have_seen_more_than_is_kept():
    cursor = TurnCursor(turn_id="t", epoch=3, sequence=7)

    reader = replayed(FINISH_REASON_CANCELLED).open_reader(
        asyncio.Event(), ReaderSpec(cursor=cursor)
    )

    assert [event.WhichOneof("event") for event in read_all(reader)][:2] == ["reset", "accepted"]


def test_events_are_not_joined_over_a_place_where_a_reader_stands():
    log = begun()
    reader = log.open_reader(asyncio.Event())
    log.append(delta("read "))
    before = read_all(reader)
    for _ in range(200):
        log.append(delta("unread "))

    events = before + read_all(reader)

    check_numbers(events)
    assert "".join(e.delta.text for e in events) == "read " + "unread " * 200


def test_no_joined_piece_is_large():
    log = begun()
    for _ in range(100):
        log.append(delta("x" * 50_000))

    events = read_all(log.open_reader(asyncio.Event()))

    check_numbers(events)
    assert max(event.ByteSize() for event in events) <= MAX_JOINED_BYTES + 100


def test_nothing_follows_the_terminal_event():
    log = begun()
    log.append(TurnEvent(completed=TurnCompleted()))

    with pytest.raises(AssertionError):
        log.append(delta("late"))


@given(st.lists(st.sampled_from(["write", "read 0", "read 1", "open"]), max_size=300))
def test_however_reads_and_writes_interleave_every_reader_gets_all_of_it(actions: list[str]):
    log = begun()
    readers = [log.open_reader(asyncio.Event()) for _ in range(2)]
    got: list[list[TurnEvent]] = [[], []]
    written = ""
    for number, action in enumerate(actions):
        if action == "write":
            written += f"{number},"
            log.append(delta(f"{number},"))
        elif action == "open":
            readers.append(log.open_reader(asyncio.Event()))
            got.append([])
        else:
            index = int(action[-1])
            if event := readers[index].read():
                got[index].append(event)
    log.append(TurnEvent(completed=TurnCompleted()))

    for reader, told in zip(readers, got, strict=True):
        events = told + read_all(reader)
        check_numbers(events)
        assert "".join(event.delta.text for event in events) == written
        assert events[-1].HasField("completed")
        assert events[-1].sequence == log.last_sequence
