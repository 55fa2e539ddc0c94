"""The engine's requests: which core request computes which output of which front-end request.

Work is done per request at submit, first row and end. What is read every step lies in arrays that
are indexed by the core's request index, the low half of its handle.
"""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.active_request import ActiveRequest
from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import (
    CloseSession,
    FinishReason,
    ForkSession,
    GenerationRequest,
    OutputEnded,
    RequestFailed,
    RewindSession,
    Scope,
)
from antiphon_engine.core_times import read_times
from antiphon_engine.grammar.guide import Guide
from antiphon_engine.mask_waits import MaskWaits
from antiphon_engine.request_checks import Fault, find_fault, is_sound
from antiphon_engine.resumption import rest_of
from antiphon_engine.sampler import sampling_flags

_INDEX_MASK = np.uint64(0xFFFFFFFF)

COUNTED_AS = {
    FinishReason.END_ID: "STOP",
    FinishReason.STOP_ID: "STOP_SEQUENCE",
    FinishReason.MAX_OUTPUT_TOKENS: "MAX_OUTPUT_TOKENS",
    FinishReason.CONTEXT_FULL: "CONTEXT_FULL",
    FinishReason.CANCELLED: "CANCELLED",
    # The caller finishes an output whose text met a stop string.
    FinishReason.FINISHED_BY_CALLER: "STOP_SEQUENCE",
}
"""The contract's words for finish reasons, under which ended outputs are counted."""


class Requests:
    """Submits, ends and finds requests. Used by the engine's one thread."""

    def __init__(
        self,
        core: _native.EngineCore,
        *,
        vocabulary_size: int,
        weights: str,
        num_reserved: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._core = core
        self._vocabulary_size = vocabulary_size
        self._weights = weights
        self._active: dict[int, ActiveRequest] = {}
        self._owners: list[ActiveRequest | None] = [None] * num_reserved
        self._handles = np.zeros(num_reserved, np.uint64)
        """Whose the entries of an index are; 0 where its request has ended."""
        self._request_ids = np.zeros(num_reserved, np.uint64)
        self._output_indices = np.zeros(num_reserved, np.int32)
        self._guides: list[Guide | None] = [None] * num_reserved
        self._num_tokens = np.zeros(num_reserved, np.int32)
        self._num_held = 0
        self._mask_waits = MaskWaits(clock_ns)
        self.num_finished: Counter[str] = Counter()
        """Outputs that ended, by the contract's finish reason, and requests refused, by reason."""

    @property
    def active_ids(self) -> list[int]:
        """The ids of the requests that have not ended."""
        return list(self._active)

    @property
    def may_run(self) -> bool:
        """Whether a request is there that is not held."""
        return self._num_held < len(self._active)

    def find_fault(self, request_id: int, request: GenerationRequest) -> RequestFailed | None:
        """Returns what is wrong with a request in itself, and counts it; None: nothing."""
        fault = find_fault(request, vocabulary_size=self._vocabulary_size)
        return None if fault is None else self._refused(request_id, fault)

    def refuse(self, request_id: int, error: AntiphonError) -> RequestFailed:
        """Counts a request that is not served, and returns the news of it."""
        fault = Fault(reason=error.reason, message=error.message, metadata=error.metadata)
        return self._refused(request_id, fault)

    def submit(
        self,
        request_id: int,
        request: GenerationRequest,
        *,
        arrival_ns: int,
        guides: tuple[Guide, ...] = (),
        grammar_wait_ns: int = 0,
    ) -> RequestFailed | None:
        """Queues every output of a request in the core, or says why none can be.

        Args:
            request_id: New.
            request: One in which `find_fault` finds nothing.
            arrival_ns: When it came, CLOCK_MONOTONIC.
            guides: One for each output, or none: every token may be drawn.
            grammar_wait_ns: What passed until they were there.
        """
        assert request_id not in self._active, f"request {request_id} is there already"
        active = ActiveRequest(
            request_id=request_id,
            request=rest_of(request),
            prompt=np.frombuffer(request.prompt, np.int32),
            arrival_ns=arrival_ns,
            grammar_wait_ns=grammar_wait_ns,
            guides=guides,
            next_scored=request.first_untold_position,
        )
        fault = self._submit_outputs(active)
        if fault is None:
            self._active[request_id] = active
            return None
        return self._refused(request_id, fault)

    def fail(self, handle: int, error: AntiphonError) -> RequestFailed:
        """Ends a request that can't go on, all its outputs, by the handle of one of them."""
        active = self._live_owner(handle)
        for output_handle in active.handles:
            if output_handle:
                self._core.abort(output_handle)
                self._mask_waits.take(output_handle)
                self._unbind(output_handle)
        del self._active[active.request_id]
        self._num_held -= active.held
        return self.refuse(active.request_id, error)

    def cancel(self, request_id: int) -> list[OutputEnded]:
        """Ends the outputs of a request that have not ended; none where it is unknown."""
        active = self._active.get(request_id)
        if active is None:
            return []
        ended = []
        for output_index, handle in enumerate(active.handles):
            if handle:
                self._core.abort(handle)
                ended.append(self._end(handle, FinishReason.CANCELLED, output_index=output_index))
        return ended

    def finish_output(
        self, request_id: int, output_index: int, *, keep_tokens: int
    ) -> OutputEnded | None:
        """Ends an output of which the first `keep_tokens` are wanted; None where it has ended."""
        active = self._active.get(request_id)
        if active is None or not active.handles[output_index]:
            return None
        handle = active.handles[output_index]
        self._core.finish(handle, max(0, keep_tokens - active.num_resumed))
        return self._end(
            handle,
            FinishReason.FINISHED_BY_CALLER,
            output_index=output_index,
            num_tokens=keep_tokens,
        )

    def hold(self, request_id: int) -> None:
        """Stops work on the outputs of a request that have not ended."""
        active = self._active.get(request_id)
        if active is None or active.held:
            return
        active.held = True
        self._num_held += 1
        for handle in active.handles:
            if handle:
                self._core.hold(handle)

    def release(self, request_id: int) -> None:
        """Goes on with a request that is held."""
        active = self._active.get(request_id)
        if active is None or not active.held:
            return
        active.held = False
        self._num_held -= 1
        for handle in active.handles:
            if handle:
                self._core.release(handle)

    def sit_out(self, handle: int) -> None:
        """Gives a core request no rows for a moment; it keeps what it has."""
        self._core.sit_out(handle)
        self._mask_waits.begin(handle)

    def rejoin(self, handle: int) -> None:
        """Lets a core request that sits out have rows again."""
        self._core.rejoin(handle)
        self._mask_waits.end(handle)

    def end(self, handle: int, reason: FinishReason) -> OutputEnded:
        """Notes that the core has ended a request by itself."""
        return self._end(handle, reason, output_index=int(self._output_indices[_index(handle)]))

    def owner(self, handle: int) -> ActiveRequest | None:
        """Returns the request that a core request belongs to; None where that has ended."""
        index = _index(handle)
        return self._owners[index] if self._handles[index] == handle else None

    def guide(self, handle: int) -> Guide | None:
        """Returns what guides a core request; None where nothing does or it has ended."""
        index = _index(handle)
        return self._guides[index] if self._handles[index] == handle else None

    def split_tokens(
        self, handle: int, *, has_output: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Returns a core request's prompt and its output so far.

        Args:
            handle: The core's.
            has_output: Whether the core may have drawn tokens for it.
        """
        active = self._live_owner(handle)
        tokens = self._core.tokens(handle) if has_output else active.prompt
        return tokens[: active.prompt_size], tokens[active.prompt_size :]

    def names(self, handles: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Returns the request id and the output index of each of `handles`."""
        indices = (handles & _INDEX_MASK).astype(np.int64)
        return self._request_ids[indices], self._output_indices[indices]

    def note_progress(self, handles: NDArray[np.uint64], *, num_tokens: NDArray[np.int32]) -> None:
        """Notes how far each of `handles` has come, for when it ends. None of them has ended.

        Where a row brought no token `num_tokens` is 0.
        """
        indices = (handles & _INDEX_MASK).astype(np.int64)
        brought = num_tokens > 0
        self._num_tokens[indices[brought]] = num_tokens[brought]

    def hint(self, message: CloseSession | ForkSession | RewindSession) -> None:
        """Passes a hint on; one whose values make no sense is dropped."""
        if not is_sound(message):
            return
        match message:
            case CloseSession():
                self._core.close_session(message.session)
            case ForkSession():
                self._core.fork_session(message.session, message.new_session)
            case RewindSession():
                self._core.rewind_session(message.session, message.num_tokens)

    def scope_id(self, scope: Scope) -> int:
        """Returns the core's id of a reuse scope."""
        return self._core.intern_scope(
            tenant=scope.tenant,
            cache_scope=scope.cache_scope,
            adapter=scope.adapter,
            weights=self._weights,
        )

    def _submit_outputs(self, active: ActiveRequest) -> Fault | None:
        """Queues every output, or none and returns why."""
        request, stop = active.request, active.request.stop
        # An end id that the model can't draw ends nothing; checkpoints name such ids.
        end_ids = [token_id for token_id in stop.end_ids if token_id < self._vocabulary_size]
        scope = self.scope_id(request.scope)
        flags = sampling_flags(request) | (_native.FLAG_GUIDED if active.guides else 0)
        try:
            for output_index in range(request.num_outputs):
                # One tells of the prompt; what it has to tell it must compute itself.
                tells_prompt = request.tells_prompt and not output_index
                handle = self._core.submit(
                    active.prompt,
                    scope=scope,
                    max_output_tokens=stop.max_output_tokens,
                    end_ids=np.array(end_ids, np.int32),
                    stop_ids=np.array(stop.stop_ids, np.int32),
                    seed=request.sampling.seed,
                    output_index=output_index,
                    priority=request.priority,
                    flags=flags | (_native.FLAG_PROMPT_LOGPROBS if tells_prompt else 0),
                    leader=active.handles[0] if output_index else 0,
                    session=0 if output_index else request.session,
                    retention_priority=request.retention_priority,
                    retention_us=request.retention_us,
                    arrival_ns=active.arrival_ns,
                    num_reusable=(active.next_scored - 1 if tells_prompt else len(active.prompt)),
                )
                active.handles.append(handle)
                self._bind(handle, active, output_index)
            return None
        except _native.NeverFitsError as error:
            needed, available = error.args
            fault = Fault(
                reason=ErrorReason.NEVER_FITS,
                message=f"The request needs {needed} blocks of KV cache and the engine has "
                f"{available}; shorten the prompt or the output.",
                metadata={"needed_blocks": str(needed), "available_blocks": str(available)},
            )
        except _native.QueueFullError:
            fault = Fault(
                reason=ErrorReason.OVERLOADED,
                message="The engine holds as many requests as it may; retry later.",
            )
        except ValueError as error:
            fault = Fault(reason=ErrorReason.CONTEXT_LENGTH_EXCEEDED, message=str(error))
        for handle in active.handles:
            self._core.abort(handle)
            self._unbind(handle)
        return fault

    def _refused(self, request_id: int, fault: Fault) -> RequestFailed:
        self.num_finished[fault.reason] += 1
        return RequestFailed(
            request_id=request_id,
            reason=fault.reason,
            message=fault.message,
            metadata=fault.metadata,
        )

    def _bind(self, handle: int, active: ActiveRequest, output_index: int) -> None:
        index = _index(handle)
        if index >= len(self._owners):
            self._reserve(max(index + 1, 2 * len(self._owners)))
        self._owners[index] = active
        self._guides[index] = active.guides[output_index] if active.guides else None
        self._handles[index] = handle
        self._request_ids[index] = active.request_id
        self._output_indices[index] = output_index
        self._num_tokens[index] = 0

    def _unbind(self, handle: int) -> None:
        self._owners[_index(handle)] = None
        self._guides[_index(handle)] = None
        self._handles[_index(handle)] = 0

    def _live_owner(self, handle: int) -> ActiveRequest:
        active = self.owner(handle)
        assert active is not None, f"core request {handle} has no owner"
        return active

    def _reserve(self, num: int) -> None:
        more = num - len(self._owners)
        self._owners.extend([None] * more)
        self._guides.extend([None] * more)
        self._handles = np.pad(self._handles, (0, more))
        self._request_ids = np.pad(self._request_ids, (0, more))
        self._output_indices = np.pad(self._output_indices, (0, more))
        self._num_tokens = np.pad(self._num_tokens, (0, more))

    def _end(
        self,
        handle: int,
        reason: FinishReason,
        *,
        output_index: int,
        num_tokens: int | None = None,
    ) -> OutputEnded:
        index = _index(handle)
        active = self._live_owner(handle)
        num_mask_waits, mask_wait_ns = self._mask_waits.take(handle)
        times = read_times(
            self._core,
            handle,
            grammar_wait_ns=active.grammar_wait_ns,
            num_mask_waits=num_mask_waits,
            mask_wait_ns=mask_wait_ns,
        )
        self._unbind(handle)
        active.handles[output_index] = 0
        if not any(active.handles):
            del self._active[active.request_id]
            self._num_held -= active.held
        self.num_finished[COUNTED_AS[reason]] += 1
        return OutputEnded(
            request_id=active.request_id,
            output_index=output_index,
            reason=reason,
            num_tokens=(
                int(self._num_tokens[index]) + active.num_resumed
                if num_tokens is None
                else num_tokens
            ),
            num_steps=times.num_steps,
            num_preemptions=times.num_preemptions,
            # The others reuse what the first computed.
            times=times if output_index == 0 else None,
        )


def _index(handle: int) -> int:
    return handle & 0xFFFFFFFF
