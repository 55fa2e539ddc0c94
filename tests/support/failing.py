"""Awaits what must fail, and returns how it does."""

from collections.abc import Awaitable

import grpc
import pytest

from antiphon_engine.api.errors import AntiphonError


async def refused(work: Awaitable[object]) -> AntiphonError:
    """Returns the error that the work raises."""
    with pytest.raises(AntiphonError) as caught:
        await work
    return caught.value


async def refused_call(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    """Returns the status with which the call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value
