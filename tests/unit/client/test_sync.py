import asyncio
import signal
import sys
import threading

import pytest
from antiphon.v1 import inference_pb2, inference_pb2_grpc, session_pb2, types_pb2

from antiphon_client import ClientOptions, NotReachable, RetryPolicy, SyncClient
from antiphon_client import blocking as waiting
from support.scripted_services import serving
from support.scripted_sessions import Conversing, completed, delta, echo

NUM_PLACES = 20  # The reading of three pieces is interrupted in as many.


class Counting(inference_pb2_grpc.InferenceServiceServicer):
    async def StreamGenerate(self, request, context):
        for number in range(3):
            text = types_pb2.Delta(channel=types_pb2.OUTPUT_CHANNEL_CONTENT, text=f"{number} ")
            yield inference_pb2.StreamGenerateResponse(delta=text)
        yield inference_pb2.StreamGenerateResponse(completed=inference_pb2.GenerationCompleted())

    async def Generate(self, request, context):
        return inference_pb2.GenerateResponse(outputs=[types_pb2.Output(text="whole")])


async def blocking(function, target):
    """Runs a program without an event loop against the target."""

    def program():
        with SyncClient(target, ClientOptions(retry=RetryPolicy(max_attempts=1))) as client:
            return function(client)

    return await asyncio.to_thread(program)


async def test_a_generation_is_read_as_text_without_an_event_loop():
    def program(client):
        stream = client.stream_generate("count")
        return list(stream.text()), stream.completed, client.generate("all")

    async with serving(inference=Counting()) as target:
        pieces, ended, whole = await blocking(program, target)

    assert pieces == ["0 ", "1 ", "2 "]
    assert ended is not None
    assert whole.outputs[0].text == "whole"


async def test_a_session_has_several_turns_without_an_event_loop():
    def program(client):
        with client.new_session(session_pb2.Session(instructions="be brief")) as session:
            first = session.send("a b").answer()
            second = [kind.WhichOneof("event") for kind in session.send("c")]
            return session.name, first, second

    servicer = Conversing(echo)
    async with serving(sessions=servicer) as target:
        name, first, second = await blocking(program, target)

    assert (name, first) == ("sessions/s", "ab")
    assert second == ["accepted", "started", "delta", "delta", "completed"]
    assert servicer.frames[0].open.create.session.instructions == "be brief"


async def test_failures_are_the_same_exceptions():
    async with serving() as target:
        pass

    with pytest.raises(NotReachable):
        await blocking(lambda client: client.generate("x"), target)


async def test_closing_ends_the_background_thread():
    async with serving(inference=Counting()) as target:
        await blocking(lambda client: client.generate("x"), target)

    assert "antiphon-client" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_interrupts_between_any_two_calls_leave_every_piece_once():
    def program(client):
        return [read_with_interrupt(client, after) for after in range(1, NUM_PLACES + 1)]

    async with serving(inference=Counting()) as target:
        read = await blocking(program, target)

    assert [pieces for pieces, _ in read] == [["0 ", "1 ", "2 "]] * NUM_PLACES
    assert all(came for _, came in read)


def read_with_interrupt(client, after):
    """Reads a stream with an interrupt where Python looks for one: behind the `after`th call."""
    text = client.stream_generate("count").text()
    pieces, left = [], after

    def interrupt(frame, event, argument):
        nonlocal left
        inside = frame if event in ("call", "c_return") else frame.f_back
        if event != "c_call" and inside and inside.f_code.co_filename == waiting.__file__:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    while True:
        sys.setprofile(interrupt)
        try:
            piece = next(text, None)
        except KeyboardInterrupt:
            continue
        finally:
            sys.setprofile(None)
        if piece is None:
            return pieces, left <= 0
        pieces.append(piece)


@pytest.fixture
def interruptible():
    """What runs in a shell's background, as the tests may, ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_wait_goes_on_where_it_was():
    async def slow(frame, context):
        if frame.HasField("generate"):
            yield delta("t", "before ")
        else:
            yield delta("t", "after")
            yield completed("t", types_pb2.FINISH_REASON_CANCELLED)

    stop = threading.Event()
    targets = []

    async def serve():
        async with serving(sessions=Conversing(slow)) as target:
            targets.append(target)
            ready.set()
            await asyncio.to_thread(stop.wait)

    ready = threading.Event()
    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    ready.wait(60)
    pieces, text = [], None
    try:
        with SyncClient(targets[0]) as client, client.new_session() as session:
            turn = session.send("x", turn_id="t")
            text = turn.text()
            pieces.append(next(text))
            main = threading.main_thread().ident
            threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                next(text)
            turn.cancel()
            pieces += list(text)
    finally:
        stop.set()
        server.join()

    assert pieces == ["before ", "after"]
    assert turn.completed.finish_reason == types_pb2.FINISH_REASON_CANCELLED
