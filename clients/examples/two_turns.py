"""A session of two streamed turns, on the stubs that are generated from the contract."""

import asyncio
import sys

import grpc
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2


async def next_frame(stream):
    """Returns what the server says next; one that shuts down may say nothing more."""
    frame = await stream.read()
    if frame is grpc.aio.EOF:
        sys.exit("The server has ended the stream.")
    return frame


async def ask(stream, text):
    """Sends one turn and prints its answer as it comes."""
    item = types_pb2.Item(message=types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text=text))
    await stream.write(session_pb2.ConverseRequest(generate=session_pb2.StartTurn(items=[item])))
    while True:
        frame = await next_frame(stream)
        if frame.HasField("rejected"):
            sys.exit(frame.rejected.failure.message)
        event = frame.turn_event
        match event.WhichOneof("event"):
            case "delta":
                print(event.delta.text, end="", flush=True)
            case "failed":
                sys.exit(event.failed.message)
            case "completed":
                usage = event.completed.usage
                print(f"\n[{usage.cached_prompt_tokens} of {usage.prompt_tokens} tokens reused]")
                return


async def main(target="127.0.0.1:50051"):
    """Creates a session and talks over one stream."""
    async with grpc.aio.insecure_channel(target) as channel:
        stream = session_pb2_grpc.SessionServiceStub(channel).Converse()
        create = session_pb2.CreateSessionRequest()
        opening = session_pb2.OpenSession(create=create)
        await stream.write(session_pb2.ConverseRequest(open=opening))
        frame = await next_frame(stream)
        print("This is", frame.opened.session.name)
        await ask(stream, "My name is Ada. What is the capital of France?")
        await ask(stream, "What is my name?")
        await stream.done_writing()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
