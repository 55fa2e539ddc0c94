"""How far a turn is, kept now and then while it runs."""

import asyncio
import zlib
from array import array
from dataclasses import dataclass
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.endurance import Attempts
from antiphon_server.generation import Generation
from antiphon_server.generation_output import NewTokens
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.records import Checkpoint, SessionKey, TurnTokens
from antiphon_server.sessions.store import SessionStore
from antiphon_server.validation import ResolvedConfig

_LAST_WRITE_S: Final = 2.0
_INTERVAL_SPREAD: Final = 0.3
"""How much sooner than others some turns are kept, as a part of the interval."""


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

    async def keep(self, *, num_attempts: int, new: NewTokens, num_kept_before: int) -> bool:
        """Adds to what is kept; returns whether that worked.

        Where it does not, a crash would cost more of the turn, and nothing else.
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
        try:
            await self.store.keep_checkpoint(self.key, self.position, checkpoint)
        except AntiphonError:
            return False
        return True


class Checkpoints:
    """Keeps the progress of one turn. Used on one event loop.

    At most one write is under way; what comes meanwhile goes into the next. A turn that is shorter
    than the interval costs nothing.
    """

    def __init__(
        self,
        place: CheckpointPlace,
        generation: Generation,
        *,
        attempts: Attempts,
        limits: SessionLimits,
    ) -> None:
        self._place = place
        (self._record,) = generation.outputs
        self._attempts = attempts
        self._limits = limits
        # Turns that began together would all write together.
        share = 1 - _INTERVAL_SPREAD * place.phase
        self._interval_s = share * limits.checkpoint_interval_s
        self._num_kept = 0
        self._timer: asyncio.TimerHandle | None = None
        self._write: asyncio.Task[None] | None = None
        self._closed = False

    def skip_kept(self, num_tokens: int) -> None:
        """Says that so many of the first tokens are kept already."""
        self._num_kept = num_tokens

    def note_progress(self) -> None:
        """Says that the record may have grown."""
        num_new = len(self._record.token_ids) - self._num_kept
        if self._closed or self._write is not None or num_new <= 0:
            return
        if num_new >= self._limits.checkpoint_tokens:
            self._begin_to_write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._interval_s, self._begin_to_write
            )

    def close(self) -> None:
        """Keeps no more: the turn's end takes along what was kept."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._write is not None:
            self._write.cancel()

    async def close_with_all(self) -> None:
        """Keeps all there is, for the next server: this one leaves the turn by its own will."""
        self.close()
        # Which is no attempt that failed.
        num_attempts = max(0, self._attempts.num - 1)
        try:
            async with asyncio.timeout(_LAST_WRITE_S):
                await self._keep(num_attempts)
        except TimeoutError:
            pass

    def _begin_to_write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed and self._write is None:
            self._write = asyncio.create_task(self._keep_and_look())

    async def _keep_and_look(self) -> None:
        worked = await self._keep(self._attempts.num)
        self._write = None
        if worked:
            self.note_progress()

    async def _keep(self, num_attempts: int) -> bool:
        start = self._num_kept
        new = NewTokens(
            token_ids=self._record.token_ids[start:], logprobs=self._record.logprobs[start:]
        )
        worked = await self._place.keep(num_attempts=num_attempts, new=new, num_kept_before=start)
        if worked:
            self._num_kept = start + len(new.token_ids)
        return worked


def resumable_output(earlier: Checkpoint | None, config: ResolvedConfig) -> NewTokens:
    """Returns the output that a generation can go on behind.

    Where all of it was kept, its last token is drawn once more: so the engine tells why it ends.
    """
    if earlier is None:
        return NewTokens()
    output_ids, stop = earlier.tokens.output_ids, config.stop
    num_tokens = min(len(output_ids), stop.max_output_tokens - 1)
    if config.top_logprobs is not None:
        num_tokens = min(num_tokens, len(earlier.logprobs))
    if num_tokens and output_ids[num_tokens - 1] in {*stop.end_ids, *stop.stop_ids}:
        num_tokens -= 1
    logprobs = earlier.logprobs if config.top_logprobs is not None else ()
    return NewTokens(token_ids=output_ids[:num_tokens], logprobs=logprobs[:num_tokens])
