"""Loops that end before gRPC has told them all that they asked for."""

import asyncio

import grpc
import pytest
from grpc import aio

from antiphon_client.event_loop import deaf_once_closed


def leave(channel_of, channels):
    """Asks gRPC for what it can't take back, and ends the loop that asked."""

    async def ask():
        channels.append(channel_of())
        asking = asyncio.create_task(
            channels[0].wait_for_state_change(grpc.ChannelConnectivity.IDLE)
        )
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    loop = deaf_once_closed(asyncio.SelectorEventLoop())
    loop.run_until_complete(ask())
    loop.close()


async def test_what_grpc_tells_a_loop_that_was_closed_troubles_no_other():
    troubles, channels = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = f"127.0.0.1:{port}"

    await asyncio.to_thread(leave, lambda: aio.insecure_channel(target), channels)
    channels[0].get_state(try_to_connect=True)
    async with aio.insecure_channel(target) as another:
        await asyncio.wait_for(another.channel_ready(), 60)
    await channels[0].close()
    await server.stop(None)

    assert troubles == []


def test_a_closed_loop_still_refuses_what_is_not_of_grpc():
    loop = deaf_once_closed(asyncio.SelectorEventLoop())
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)
