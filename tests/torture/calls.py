"""Calls that are tried again until the server gives its word on them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from torture.tally import Kind, Tally, ViolationError
from torture.victim import UP_LIMIT_S

ANSWER_LIMIT_S = 20.0
"""How long one try may take; the server may have been killed beneath it."""

_PASSING = {"OVERLOADED", "ENGINE_DOWN", "DRAINING", "STORE_UNAVAILABLE"}
_RETRY_WAIT_S = 0.05

T = TypeVar("T")


class BrokenError(Exception):
    """The connection broke: the server has said nothing."""


class RefusedError(Exception):
    """The server's word on a call."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason

    @property
    def passes(self) -> bool:
        """Whether it may go well later."""
        return self.reason in _PASSING


def verdict_of(error: grpc.aio.AioRpcError) -> BrokenError | RefusedError:
    """Returns what a failed call means: the server's own failures carry details."""
    trailers = dict(error.trailing_metadata() or ())
    packed = trailers.get("grpc-status-details-bin")
    if packed is None:
        return BrokenError(f"{error.code().name}: {error.details()}")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Unpack(info):
            return RefusedError(info.reason, str(error.details()))
    return RefusedError(error.code().name, str(error.details()))


class Patience:
    """How long something is tried: while the server is up, not for ever."""

    def __init__(self, tally: Tally, what: str) -> None:
        self._tally = tally
        self._what = what
        self._end_s = time.monotonic() + UP_LIMIT_S

    def renew(self) -> None:
        """Notes that it got on."""
        self._end_s = time.monotonic() + UP_LIMIT_S

    async def rest(self, why: Exception) -> None:
        """Waits a moment before the next try. Raises ViolationError once it has lasted too long."""
        if time.monotonic() > self._end_s:
            raise ViolationError(Kind.UNRESUMED, f"{self._what} got nowhere; last: {why}")
        self._tally.counts["tries_again"] += 1
        self._tally.note(f"{self._what} tries again: {why!r}")
        await asyncio.sleep(_RETRY_WAIT_S)


async def insist(tally: Tally, what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Calls until there is an answer. Raises RefusedError, or ViolationError if there is none."""
    patience = Patience(tally, what)
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            verdict = verdict_of(error)
        if isinstance(verdict, RefusedError) and not verdict.passes:
            raise verdict
        await patience.rest(verdict)
