"""How far a turn is, kept now and then while it runs."""

import asyncio
import contextlib
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import TokenLogprobs
from antiphon_server.ended_stream import end_of_tokens
from antiphon_server.endurance import Attempts
from antiphon_server.generation import Generation
from antiphon_server.generation_output import NewTokens
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.records import Checkpoint, SessionKey, TurnTokens
from antiphon_server.sessions.shared_instants import Instant, SharedInstants, Window
from antiphon_server.sessions.store import SessionStore
from antiphon_server.validation import ResolvedConfig

_LAST_WRITE_S: Final = 2.0
_INTERVAL_SPREAD: Final = 0.3
"""How much sooner than the interval asks turns may be kept, as a part of it.

They wait for each other's instants within that: what is written together costs one transaction,
which is most of what a small write costs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """Whose progress is kept, and where."""

    store: SessionStore
    key: SessionKey
    position: int
    tokens: TurnTokens
    """The turn's prompt, where ids are kept."""

    @property
    def phase(self) -> float:
        """From 0 to 1: tells turns apart that began together."""
        return zlib.crc32(f"{self.key.name}/{self.position}".encode()) / (1 << 32)

    async def keep(self, *, num_attempts: int, new: NewTokens, num_kept_before: int) -> None:
        """Adds to what is kept.

        Raises:
            AntiphonError: STORE_UNAVAILABLE. A crash would cost more of the turn, and nothing else.
        """
        checkpoint = Checkpoint(
            num_attempts=num_attempts,
            tokens=TurnTokens(
                head_ids=self.tokens.head_ids,
                head_digest=self.tokens.head_digest,
                added_ids=self.tokens.added_ids,
                output_ids=array("i", new.token_ids),
            ),
            logprobs=new.logprobs,
            num_kept_before=num_kept_before,
        )
        if not await self.store.keep_checkpoint(self.key, self.position, checkpoint):
            raise AntiphonError(
                ErrorReason.STORE_UNAVAILABLE,
                f"the turn at position {self.position} of {self.key.name} is not this server's now",
                retry_delay_s=1.0,
            )


class Checkpoints:
    """Keeps the progress of one turn, at instants that turns share. Used on one event loop.

    At most one write is under way; what comes meanwhile goes into the next. A turn that is shorter
    than the interval costs nothing.
    """

    __slots__ = (
        "_attempts",
        "_closed",
        "_instant",
        "_instants",
        "_limits",
        "_num_kept",
        "_place",
        "_record",
        "_write",
    )

    def __init__(
        self,
        place: CheckpointPlace,
        generation: Generation,
        *,
        attempts: Attempts,
        limits: SessionLimits,
        instants: SharedInstants,
    ) -> None:
        self._place = place
        (self._record,) = generation.outputs
        self._attempts = attempts
        self._limits = limits
        self._instants = instants
        self._num_kept = 0
        self._instant: Instant | None = None
        self._write: asyncio.Task[None] | None = None
        self._closed = False

    def skip_kept(self, num_tokens: int) -> None:
        """Says that so many of the first tokens are kept already."""
        self._num_kept = num_tokens

    def note_progress(self) -> None:
        """Says that the record may have grown."""
        num_new = len(self._record.token_ids) - self._num_kept
        if self._instant is not None and num_new < self._limits.checkpoint_tokens:
            return
        if self._closed or self._write is not None or num_new <= 0:
            return
        if num_new >= self._limits.checkpoint_tokens:
            self._begin_to_write()
        elif self._instant is None:
            self._instant = self._instants.join(self._window(), self._begin_to_write)

    def close(self) -> None:
        """Keeps no more: the turn's end takes along what was kept."""
        self._closed = True
        self._leave_instant()
        if self._write is not None:
            self._write.cancel()

    async def close_with_all(self) -> None:
        """Keeps all there is, for the next server: this one leaves the turn by its own will."""
        self.close()
        # Which is no attempt that failed.
        num_attempts = max(0, self._attempts.num - 1)
        with contextlib.suppress(TimeoutError, AntiphonError):
            async with asyncio.timeout(_LAST_WRITE_S):
                await self._keep(num_attempts)

    async def keep_all(self) -> None:
        """Keeps all there is; returns once that is durable. Not while another such call waits.

        Raises:
            AntiphonError: STORE_UNAVAILABLE.
        """
        while self._write is not None:
            await asyncio.wait({self._write})
        self._leave_instant()
        if self._num_kept < len(self._record.token_ids):
            self._write = asyncio.create_task(self._keep(self._attempts.num))
            try:
                await self._write
            finally:
                self._write = None

    def _begin_to_write(self) -> None:
        self._leave_instant()
        if not self._closed and self._write is None:
            self._write = asyncio.create_task(self._keep_and_look())

    def _leave_instant(self) -> None:
        if self._instant is not None:
            self._instant.leave(self._begin_to_write)
            self._instant = None

    def _window(self) -> Window:
        """Returns when what there is now may be kept."""
        now_s, interval_s = asyncio.get_running_loop().time(), self._limits.checkpoint_interval_s
        # Turns that began together, and are too many for one instant, would all write together. In
        # the window's later half, so that who comes a little later can still join.
        share = 1 - _INTERVAL_SPREAD / 2 * self._place.phase
        return Window(
            earliest_s=now_s + (1 - _INTERVAL_SPREAD) * interval_s,
            own_s=now_s + share * interval_s,
            latest_s=now_s + interval_s,
        )

    async def _keep_and_look(self) -> None:
        worked = False
        with contextlib.suppress(AntiphonError):
            await self._keep(self._attempts.num)
            worked = True
        self._write = None
        if worked:
            self.note_progress()

    async def _keep(self, num_attempts: int) -> None:
        start = self._num_kept
        new = NewTokens(
            token_ids=self._record.token_ids[start:], logprobs=self._record.logprobs[start:]
        )
        await self._place.keep(num_attempts=num_attempts, new=new, num_kept_before=start)
        self._num_kept = start + len(new.token_ids)


def resumable_output(earlier: Checkpoint | None, config: ResolvedConfig) -> NewTokens:
    """Returns the output that a generation goes on behind; with its end where all was kept.

    Nothing of it is drawn once more: what was told of it may have been acted upon.
    """
    if earlier is None:
        return NewTokens()
    num_tokens = min(len(earlier.tokens.output_ids), config.stop.max_output_tokens)
    logprobs: Sequence[TokenLogprobs] = ()
    if config.top_logprobs is not None:
        num_tokens = min(num_tokens, len(earlier.logprobs))
        logprobs = earlier.logprobs[:num_tokens]
    token_ids = earlier.tokens.output_ids[:num_tokens]
    return NewTokens(
        token_ids=token_ids, logprobs=logprobs, ended=end_of_tokens(token_ids, config.stop)
    )
