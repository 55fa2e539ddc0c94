"""One turn that has not ended: what was asked, what has come of it, and how it is stopped."""

import asyncio
from typing import Final

from antiphon.v1.session_pb2 import Session, Turn, TurnAccepted, TurnCompleted, TurnEvent
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, Failure, GenerationConfig, Tool

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.access.quotas import Place
from antiphon_server.generation import Generation
from antiphon_server.prompt import asks_to_think
from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.failures import is_cancelled
from antiphon_server.sessions.prompt_head import PromptHead
from antiphon_server.sessions.records import Checkpoint, TurnOrder, TurnRow
from antiphon_server.sessions.turn_request import TurnRequest
from antiphon_server.telemetry.request_record import Outcome, RequestEventKind
from antiphon_server.telemetry.request_recorder import no_recorder


class LiveTurn:
    """A turn from its acceptance to its end. Used on one event loop; its session drives it.

    1. Its log begins with `accepted`, once that is durable, and ends with one terminal event.
    2. Where it could not be accepted the log stays empty and `accepted` raises.
    """

    def __init__(
        self,
        request: TurnRequest,
        *,
        turn_id: str,
        position: int,
        epoch: int,
        max_undelivered_bytes: int,
    ) -> None:
        self.request: Final = request
        self.turn_id: Final = turn_id
        self.position: Final = position
        self.message: Final = Turn(state=Turn.STATE_QUEUED, input=request.items, epoch=epoch)
        self.log: Final = EventLog(
            turn_id, epoch, max_backlog_bytes=max_undelivered_bytes, valve=self
        )
        self.accepted: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        """Done once its acceptance is durable; raises where it was refused."""
        self.ended: Final = asyncio.Event()
        """It is over, and what came of it is durable, if the store can be written."""
        self.instructions = ""
        """The session's as the turn was accepted."""
        self.tools: tuple[Tool, ...] = ()
        """The session's as the turn was accepted."""
        self.config = GenerationConfig()
        """The session's defaults as the turn was accepted, with the turn's own over them."""
        self.received_ns = 0
        """On the monotonic clock."""
        self.deadline_ns: int | None = None
        """On the monotonic clock."""
        self.place: Place | None = None
        """What it holds of its tenant's quotas, from its entry to its end."""
        self.earlier: Checkpoint | None = None
        """How far a server before this one came with it; None: this one took it in."""
        self.recorder = no_recorder()
        """What collects its record."""
        self.is_left = False
        """Whether this server leaves it to the next one."""
        self.cancel_asked = False
        self.discards = False
        """Whether a cancellation drops what was generated."""
        self.interrupted_at: int | None = None
        """The last event's number that its caller had got as another turn interrupted it."""
        self._num_holds = 0
        self._generation: Generation | None = None

    @property
    def has_earlier_output(self) -> bool:
        """Whether there is output from before this server."""
        return self.earlier is not None and bool(self.earlier.tokens.output_ids)

    @property
    def head(self) -> PromptHead:
        """What its prompt is rendered under."""
        return PromptHead(
            instructions=self.instructions,
            tools=self.tools,
            reasoning=asks_to_think(self.config.reasoning),
        )

    def row(self, message: Turn | None = None) -> TurnRow:
        """Returns it as it is kept, with a message of its own or as it stands."""
        return TurnRow(
            position=self.position,
            turn_id=self.turn_id,
            generates=self.request.generates,
            continues=self.request.continues,
            fingerprint=self.request.fingerprint,
            turn=self.snapshot() if message is None else message,
            order=TurnOrder(
                request=self.request.message,
                accepted=Session(
                    instructions=self.instructions, tools=self.tools, defaults=self.config
                ),
            ),
        )

    def snapshot(self) -> Turn:
        """Returns it as it stands, with the output so far."""
        turn = Turn()
        turn.CopyFrom(self.message)
        turn.last_sequence = self.log.last_sequence
        if self.request.generates and self.log.last_sequence > 1:
            turn.output.CopyFrom(self.log.output())
        return turn

    def accept(self, num_before: int) -> None:
        """Tells that its acceptance is durable."""
        told = TurnAccepted(frame_id=self.request.frame_id, num_before=num_before)
        self.log.append(TurnEvent(accepted=told))
        self.accepted.set_result(None)

    def refuse(self, error: AntiphonError) -> None:
        """Tells that it could not be accepted."""
        self.recorder.end(Outcome.FAILED, reason=error.reason.value)
        self.accepted.set_exception(error)
        self.accepted.exception()  # Marks it as seen: whoever asked may have gone.

    def cancel(self, *, discards: bool) -> None:
        """Asks it to end early. Idempotent; a later call may still ask to discard."""
        self.cancel_asked = True
        self.discards |= discards
        if self._generation is not None:
            self._generation.cancel()

    def interrupt(self) -> None:
        """Asks it to end early and keep no more than was delivered by now. Idempotent."""
        if self.interrupted_at is None:
            self.interrupted_at = self.log.delivered.sequence
            self.recorder.note(RequestEventKind.INTERRUPTED)
        self.cancel(discards=False)

    def hold(self) -> None:
        """Makes no more output until it is released as often; its times run on."""
        self._num_holds += 1
        if self._generation is not None:
            self._generation.hold()

    def release(self) -> None:
        """Takes back one `hold`."""
        self._num_holds -= 1
        if self._generation is not None and not self._num_holds:
            self._generation.release()

    def follow(self, generation: Generation) -> None:
        """Makes what is asked of the turn reach its generation, also what was asked before."""
        self._generation = generation
        if self.cancel_asked:
            generation.cancel()
        if self._num_holds:
            generation.hold()

    def tell_completed(self, completed: TurnCompleted) -> None:
        """Adds the terminal event of a turn that has a place in the history."""
        self.log.append(TurnEvent(completed=completed))
        is_cancelled = completed.finish_reason == FINISH_REASON_CANCELLED
        self.recorder.end(Outcome.CANCELLED if is_cancelled else Outcome.COMPLETED)
        self.ended.set()

    def tell_failed(self, failure: Failure) -> None:
        """Adds the terminal event of a turn that has none."""
        self.log.append(TurnEvent(failed=failure))
        outcome = Outcome.CANCELLED if is_cancelled(failure) else Outcome.FAILED
        self.recorder.end(outcome, reason=failure.reason)
        self.ended.set()
