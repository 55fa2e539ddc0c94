import os
import socket
import struct
from collections.abc import Iterator

import pytest

from antiphon_engine.api.frames import MAX_FRAME_BYTES, encode_frame, front_end_reader
from antiphon_engine.api.messages import (
    Answer,
    Cancel,
    CoreStats,
    GenerationRequest,
    MatchPrefix,
    SamplingParams,
    Scope,
    StepNews,
    StopParams,
    Submit,
)
from antiphon_engine.link import FrontEndGoneError, FrontEndLink


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


def test_messages_come_whole_and_in_order_however_they_are_cut(sockets) -> None:
    front_end, engine = sockets
    link = FrontEndLink(engine)
    messages = [
        Submit(
            request_id=2**63,
            request=GenerationRequest(
                prompt=bytes(range(200)) * 40,
                sampling=SamplingParams(seed=2**64 - 1, logit_bias={5: -1.5}),
                stop=StopParams(max_output_tokens=3, end_ids=(1, 2)),
            ),
        ),
        Cancel(request_id=1),
        MatchPrefix(query_id=4, scope=Scope(tenant="t"), tokens=b"abcd"),
    ]
    data = b"".join(encode_frame(message) for message in messages)

    received = []
    for start in range(0, len(data), 777):
        front_end.sendall(data[start : start + 777])
        received += link.receive(0.0)

    assert received == messages


def test_nothing_comes_within_the_time_when_nothing_was_sent(sockets) -> None:
    _, engine = sockets

    assert FrontEndLink(engine).receive(0.01) == []


def test_closed_front_end_is_noticed(sockets) -> None:
    front_end, engine = sockets
    front_end.close()

    with pytest.raises(FrontEndGoneError):
        FrontEndLink(engine).receive(1.0)


@pytest.mark.parametrize(
    "data",
    [struct.pack("<I", MAX_FRAME_BYTES + 1), struct.pack("<I", 3) + b"abc", b"\x01\0\0\0\xc1"],
)
def test_what_is_no_frame_ends_the_link(sockets, data: bytes) -> None:
    front_end, engine = sockets
    front_end.sendall(data)

    with pytest.raises(FrontEndGoneError, match="frame"):
        FrontEndLink(engine).receive(1.0)


def test_messages_to_a_slow_reader_wait_and_then_arrive_in_order(sockets) -> None:
    front_end, engine = sockets
    link = FrontEndLink(engine)
    sent = [Answer(query_id=i, value=CoreStats(step=i)) for i in range(200)]
    sent.append(StepNews(step=1, start_ns=1, end_ns=2, token_ids=os.urandom(1 << 20)))

    for message in sent:
        link.send(message)

    reader, received = front_end_reader(), []
    while len(received) < len(sent):
        received += reader.feed(front_end.recv(1 << 16))
        link.receive(0.0)
    assert received == sent


def test_reader_that_never_reads_is_given_up_at_the_bound(sockets) -> None:
    _, engine = sockets
    link = FrontEndLink(engine, max_unsent_bytes=1 << 20)
    news = StepNews(step=1, start_ns=1, end_ns=2, token_ids=bytes(1 << 18))

    def send_for_ever() -> None:
        for _ in range(100):
            link.send(news)

    with pytest.raises(FrontEndGoneError, match="unread"):
        send_for_ever()


def test_last_words_are_sent_before_the_link_is_closed(sockets) -> None:
    front_end, engine = sockets
    link = FrontEndLink(engine)
    link.send(StepNews(step=1, start_ns=1, end_ns=2, token_ids=bytes(100)))
    link.drain(1.0)
    link.close()

    assert len(front_end_reader().feed(front_end.recv(1 << 20))) == 1
