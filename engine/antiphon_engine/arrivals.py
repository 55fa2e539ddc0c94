"""Requests between their arrival and the core: those that are guided wait for their guides."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import (
    FinishReason,
    GenerationRequest,
    OutputEnded,
    RequestFailed,
)
from antiphon_engine.core_times import times_without_steps
from antiphon_engine.grammar.preparing import GuideMaker, Prepared, needs_guides
from antiphon_engine.requests import COUNTED_AS, Requests


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A request whose guides are being made."""

    request: GenerationRequest
    arrival_ns: int
    held: bool = False


class Arrivals:
    """Passes requests on to the core as soon as they can run. Used by the engine's one thread."""

    def __init__(
        self,
        requests: Requests,
        guide_maker: GuideMaker,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._requests = requests
        self._clock_ns = clock_ns
        self._guide_maker = guide_maker
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def num_guides(self) -> int:
        """How many guides there are, of requests that wait, run or have left one behind."""
        return self._guide_maker.num_guides

    def warm_up(self) -> None:
        """Begins to load what the first guided request would have to wait for."""
        self._guide_maker.warm_up()

    def close(self) -> None:
        """Lets the threads that make guides end."""
        self._guide_maker.close()

    def submit(
        self,
        request_id: int,
        request: GenerationRequest,
        *,
        arrival_ns: int,
        is_overloaded: bool,
    ) -> RequestFailed | None:
        """Takes a request; returns why it can't be served, where that is known at once.

        Args:
            request_id: New.
            request: As the front end asks for it.
            arrival_ns: When it came, CLOCK_MONOTONIC.
            is_overloaded: Whether guided requests are to be refused for now.
        """
        fault = self._requests.find_fault(request_id, request)
        if fault is not None:
            return fault
        if not needs_guides(request):
            return self._requests.submit(request_id, request, arrival_ns=arrival_ns)
        if is_overloaded or self._guide_maker.is_overloaded:
            return self._requests.refuse(
                request_id,
                AntiphonError(
                    ErrorReason.OVERLOADED,
                    "Too many constraints that took too long are still at work; retry later.",
                ),
            )
        self._waiting[request_id] = _Waiting(request=request, arrival_ns=arrival_ns)
        self._guide_maker.start(request_id, request)
        return None

    def admit(self) -> list[RequestFailed]:
        """Passes on those whose guides are there; returns those that can't be served."""
        # Also where nobody waits any more: what was made for requests that have ended must go.
        if not self._guide_maker.num_in_work:
            return []
        failed = [self._admit(prepared) for prepared in self._guide_maker.take_prepared()]
        return [failure for failure in failed if failure is not None]

    def end(
        self, request_id: int, reason: FinishReason, *, num_tokens: int | None = None
    ) -> list[OutputEnded]:
        """Ends a request that waits, all its outputs; none where it is unknown here.

        Args:
            request_id: Any.
            reason: Why.
            num_tokens: That are wanted of its output; None: all that was generated before.
        """
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return []
        request = waiting.request
        times = times_without_steps(
            arrival_ns=waiting.arrival_ns, grammar_wait_ns=self._clock_ns() - waiting.arrival_ns
        )
        self._requests.num_finished[COUNTED_AS[reason]] += request.num_outputs
        return [
            OutputEnded(
                request_id=request_id,
                output_index=output_index,
                reason=reason,
                num_tokens=request.num_resumed_tokens if num_tokens is None else num_tokens,
                num_steps=0,
                times=times if output_index == 0 else None,
            )
            for output_index in range(request.num_outputs)
        ]

    def hold(self, request_id: int) -> None:
        """Notes that a request that waits is to rest once it is in the core."""
        if request_id in self._waiting:
            self._waiting[request_id].held = True

    def release(self, request_id: int) -> None:
        """Notes that a request that waits need not rest."""
        if request_id in self._waiting:
            self._waiting[request_id].held = False

    def _admit(self, prepared: Prepared) -> RequestFailed | None:
        waiting = self._waiting.pop(prepared.request_id, None)
        # One that was cancelled meanwhile has been told of its end.
        if waiting is None:
            return None
        if prepared.error is not None:
            return self._requests.refuse(prepared.request_id, prepared.error)
        failed = self._requests.submit(
            prepared.request_id,
            waiting.request,
            arrival_ns=waiting.arrival_ns,
            guides=prepared.guides,
            grammar_wait_ns=self._clock_ns() - waiting.arrival_ns,
        )
        if failed is None and waiting.held:
            self._requests.hold(prepared.request_id)
        return failed
