"""One session's turns, one after the other."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Final

import structlog
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, Failure

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.cache_hints import retention_of, tell_rewound
from antiphon_server.sessions.failures import cancelled_failure, turn_timeout
from antiphon_server.sessions.history import nothing_to_answer
from antiphon_server.sessions.history_points import Base, check_continuable, check_results
from antiphon_server.sessions.interruption import settle_output
from antiphon_server.sessions.ledger import Ledger
from antiphon_server.sessions.outages import written_at_last
from antiphon_server.sessions.records import RUNNING
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_generation import Context, Outcome, generate
from antiphon_server.sessions.turn_request import TurnRequest
from antiphon_server.status import to_failure
from antiphon_server.telemetry.request_record import StageKind
from antiphon_server.times import NS_PER_S

_STOPPED_EARLY: Final = "The turn was stopped before it had any output."
_INTERRUPTED_EARLY: Final = "The turn was interrupted before any output of it was delivered."
_DISCARDED: Final = "The turn was stopped, and its output discarded."


class TurnQueue:
    """The turns of one session that have not ended, in order of acceptance.

    A task works on them while there are any. Every turn that was accepted ends in exactly one
    terminal event, and only behind the write that makes its end durable.
    """

    def __init__(self, ledger: Ledger, surroundings: Surroundings) -> None:
        self._ledger = ledger
        self._surroundings = surroundings
        self._waiting: deque[LiveTurn] = deque()
        self._attempt: asyncio.Task[Failure | None] | None = None
        self._live: dict[str, LiveTurn] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._cut: Failure | None = None

    @property
    def live(self) -> list[LiveTurn]:
        """The turns that have not ended, in order."""
        return list(self._live.values())

    def find(self, turn_id: str) -> LiveTurn | None:
        """Returns a turn that has not ended."""
        return self._live.get(turn_id)

    def check_room(self, request: TurnRequest) -> None:
        """Checks whether a turn may come now. Raises AntiphonError, SESSION_BUSY or OVERLOADED."""
        if request.interrupts:
            return
        ahead = [turn for turn in self._live.values() if not turn.cancel_asked]
        if request.rejects_busy and ahead:
            raise self._busy(ahead[0], "Wait for it, cancel it, or let this one queue.")
        limit = self._surroundings.limits.max_queued_turns
        if len(self._waiting) >= limit:
            raise AntiphonError(
                ErrorReason.OVERLOADED,
                f"{len(self._waiting)} turns of the session wait already; the limit is {limit}."
                " Try again when some have ended.",
                metadata={"session": self._ledger.row.key.name, "limit": str(limit)},
                retry_delay_s=1.0,
            )

    def check_answerable(self, request: TurnRequest) -> None:
        """Checks that a turn will have something to answer. Raises InvalidRequest.

        What stands behind another place than the head, or behind a turn that is interrupted, is
        known only as the turn starts.
        """
        if request.rewind_to is not None or request.continues or request.interrupts:
            return
        last = next(reversed(self._live.values()), None)
        appended = (
            bool(self._ledger.history.pending) if last is None else not last.request.generates
        )
        if not request.items and not appended:
            raise nothing_to_answer(request.path)

    def check_calls(self, request: TurnRequest) -> None:
        """Checks results against the calls that wait for them. Raises AntiphonError.

        What stands behind another place than the head, or behind turns that have not ended, is
        known only as the turn starts.
        """
        if request.rewind_to is None and not self._live:
            check_results(self._ledger.history, self._ledger.row.session.head_turn, request)

    def add(self, turn: LiveTurn) -> None:
        """Takes a turn in; its `accepted` tells when that is durable."""
        num_before = self._enter(turn)
        self._spawn(self._accept(turn, num_before))

    def take_up(self, turn: LiveTurn) -> None:
        """Takes in a turn that an earlier server accepted."""
        turn.accept(self._enter(turn))

    def _enter(self, turn: LiveTurn) -> int:
        """Puts a turn behind the others, and returns how many those are."""
        num_before = len(self._live)
        if turn.place is None:  # It was let in before this server started.
            quotas = self._surroundings.tenancy.quotas
            turn.place = quotas.enter_again(self._ledger.row.key.tenant, queued=num_before > 0)
        self._live[turn.turn_id] = turn
        self._waiting.append(turn)
        if turn.deadline_ns is not None:
            left_ns = turn.deadline_ns - self._surroundings.clock.monotonic_ns()
            self._timers[turn.turn_id] = asyncio.get_running_loop().call_later(
                max(0, left_ns) / NS_PER_S, self._time_out, turn
            )
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return num_before

    def cancel(self, turn: LiveTurn, *, discards: bool) -> None:
        """Stops a turn; it ends soon after. Idempotent."""
        turn.cancel(discards=discards)
        if turn in self._waiting and not turn.has_earlier_output:
            self._drop(turn, cancelled_failure(_STOPPED_EARLY))

    def interrupt(self) -> None:
        """Stops all turns; the one that runs keeps what was delivered of it by now."""
        for turn in self.live:
            if turn in self._waiting:
                self._drop(turn, cancelled_failure(_INTERRUPTED_EARLY))
            else:
                turn.interrupt()

    def check_idle(self) -> None:
        """Checks that no turn is there. Raises AntiphonError, SESSION_BUSY."""
        if turn := next(iter(self._live.values()), None):
            raise self._busy(turn, "Wait for it, or set cancel_active.")

    async def end_all(self, failure: Failure) -> None:
        """Stops all turns, and waits until each has ended; what doesn't in time fails with that."""
        for turn in self.live:
            self.cancel(turn, discards=False)
        try:
            async with asyncio.timeout(self._surroundings.limits.end_wait_s):
                await self.wait_idle()
        except TimeoutError:
            await self.cut_off(failure)

    async def wait_idle(self) -> None:
        """Waits until no turn is left."""
        while self._live:
            await next(iter(self._live.values())).ended.wait()
            await asyncio.sleep(0)
        if self._worker is not None:
            await asyncio.wait({self._worker})

    async def cut_off(self, failure: Failure) -> None:
        """Fails all turns now, without their doing."""
        self._cut = failure
        for turn in list(self._waiting):
            self._drop(turn, failure)
        if self._attempt is not None:
            self._attempt.cancel()
        await self.wait_idle()
        self._cut = None

    async def leave(self) -> None:
        """Stops all work and leaves the turns, as far as they are, to the next server."""
        for turn in self.live:
            turn.is_left = True
        if self._attempt is not None:
            self._attempt.cancel()
        if self._worker is not None:
            await asyncio.wait({self._worker})
        if self._tasks:
            await asyncio.wait(self._tasks)
        for turn in self.live:
            self._forget(turn)
            turn.ended.set()

    async def _accept(self, turn: LiveTurn, num_before: int) -> None:
        try:
            key = self._ledger.row.key
            limits = self._surroundings.tenancy.quotas.limits_of(key.tenant)
            with (
                self._surroundings.tenancy.quotas.counted(),
                turn.recorder.stage(StageKind.STORE_WRITE, write="accept"),
            ):
                await self._surroundings.store.accept_turn(
                    key, turn.row(), max_stored_bytes=limits.max_stored_bytes
                )
        except AntiphonError as error:
            turn.refuse(error)
            self._forget(turn)
            if turn in self._waiting:
                self._waiting.remove(turn)
                turn.ended.set()
        else:
            turn.accept(num_before)

    async def _work(self) -> None:
        while self._waiting and not self._waiting[0].is_left:
            turn = self._waiting.popleft()
            assert turn.place is not None
            turn.place.start()
            self._attempt = asyncio.create_task(self._try(turn))
            await asyncio.wait({self._attempt})
            failure = self._failure_of(self._attempt, turn)
            ended_itself = not self._attempt.cancelled()
            self._attempt = None
            if turn.is_left and not ended_itself:
                break
            if failure is not None:
                await self._fail(turn, failure)
        self._worker = None

    def _failure_of(
        self, attempt: "asyncio.Task[Failure | None]", turn: LiveTurn
    ) -> Failure | None:
        """Returns why an attempt failed; None: it did not."""
        if attempt.cancelled():
            return self._cut or cancelled_failure(_STOPPED_EARLY)
        error = attempt.exception()
        if error is None:
            return attempt.result()
        if isinstance(error, AntiphonError):
            return to_failure(error)
        structlog.get_logger().error("turn failed", turn=turn.message.name, exc_info=error)
        return to_failure(
            AntiphonError(
                ErrorReason.INTERNAL,
                f"{turn.message.name} failed by a fault of the server; its log tells more.",
                metadata={"turn": turn.message.name},
            )
        )

    async def _try(self, turn: LiveTurn) -> Failure | None:
        """Carries a turn out, and tells of its end if it is in the history.

        Raises:
            AntiphonError: it failed.
        """
        row = self._ledger.row
        base = await self._ledger.base_of(turn.request)
        check_results(base.history, base.head_turn, turn.request)
        turn.message.state = RUNNING
        turn.message.parent_turn = base.head_turn
        turn.recorder.note_previous_turn(base.history.head_traceparent)
        outcome: Outcome | None = Outcome()
        if turn.request.generates:
            outcome = await self._generate(turn, base)
        await turn.accepted
        if turn.discards and turn.request.generates:
            return cancelled_failure(_DISCARDED)
        if outcome is None or _is_empty(outcome):
            return cancelled_failure(_STOPPED_EARLY)
        if outcome.output is not None:
            outcome = await settle_output(turn, outcome, self._surroundings)
            if outcome is None:
                return cancelled_failure(_INTERRUPTED_EARLY)
        with turn.recorder.stage(StageKind.STORE_WRITE, write="complete"):
            completed = await written_at_last(
                partial(self._ledger.complete, turn, outcome, base), turn, self._surroundings.store
            )
        self._forget(turn)
        turn.tell_completed(completed)
        self._keep_log(turn)
        if turn.interrupted_at is not None:
            tell_rewound(self._surroundings, row, self._ledger.history.num_tokens)
        return None

    async def _generate(self, turn: LiveTurn, base: Base) -> Outcome | None:
        """Returns what comes of a turn that generates; None: it was stopped before it began."""
        if turn.request.continues:
            check_continuable(base, f"{turn.request.path}.continue_answer")
        row = self._ledger.row
        context = Context(
            key=row.key,
            model=row.session.model,
            history=base.history,
            retention=retention_of(row, default_s=self._surroundings.limits.retention_s),
        )
        return await generate(turn, context, self._surroundings)

    async def _fail(self, turn: LiveTurn, failure: Failure) -> None:
        """Ends a turn that has no place in the history; one that was refused just goes."""
        refused = (await asyncio.wait({turn.accepted}))[0].pop().exception() is not None
        if not refused and not await self._kept_failed(turn, failure):
            return
        self._forget(turn)
        if not refused:
            turn.tell_failed(failure)
            self._keep_log(turn)
        turn.ended.set()

    async def _kept_failed(self, turn: LiveTurn, failure: Failure) -> bool:
        """Keeps that a turn failed; false: it was left to the next server instead."""
        write = partial(self._ledger.fail, turn, failure)
        try:
            with turn.recorder.stage(StageKind.STORE_WRITE, write="fail"):
                await written_at_last(write, turn, self._surroundings.store)
        except AntiphonError:
            # The session is another server's by now, or its row is damaged.
            return not turn.is_left
        return True

    def _drop(self, turn: LiveTurn, failure: Failure) -> None:
        """Ends a turn that waits."""
        self._waiting.remove(turn)
        self._spawn(self._fail(turn, failure))

    def _time_out(self, turn: LiveTurn) -> None:
        if turn in self._waiting:
            self._drop(turn, to_failure(turn_timeout(turn.message.name)))

    def _busy(self, turn: LiveTurn, what_to_do: str) -> AntiphonError:
        name = turn.message.name
        return AntiphonError(
            ErrorReason.SESSION_BUSY,
            f"The turn {name} has not ended. {what_to_do}",
            metadata={"turn": name, "session": self._ledger.row.key.name},
        )

    def _forget(self, turn: LiveTurn) -> None:
        if turn.place is not None:
            turn.place.release()
        if self._live.get(turn.turn_id) is not turn:
            return
        del self._live[turn.turn_id]
        if timer := self._timers.pop(turn.turn_id, None):
            timer.cancel()

    def _keep_log(self, turn: LiveTurn) -> None:
        self._surroundings.ended_logs.keep(self._ledger.row.key, turn.log)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_empty(outcome: Outcome) -> bool:
    """Whether a cancellation came before any output."""
    cancelled = outcome.completed.finish_reason == FINISH_REASON_CANCELLED
    return cancelled and outcome.num_output_tokens == 0
