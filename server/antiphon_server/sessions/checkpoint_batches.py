"""Checkpoints that are due together: one write for all of them."""

import asyncio
from collections.abc import Sequence
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.sessions.sqlite_checkpoints import TurnCheckpoint, write_checkpoints
from antiphon_server.sessions.sqlite_threads import Writer

MAX_BATCH: Final = 64

Waiting = tuple[TurnCheckpoint, "asyncio.Future[bool]"]


class CheckpointBatches:
    """Joins what is to be kept in one round of the event loop. Used on one event loop.

    By itself each would cost more on its way to the writer's thread and back than it takes to
    write; and the event loop waits for the interpreter at every statement of that thread.
    """

    def __init__(self, writer: Writer, *, epoch: int) -> None:
        """Sets what writes, and the epoch of the server that does."""
        self._writer = writer
        self._epoch = epoch
        self._waiting: list[Waiting] = []
        self._writes: set[asyncio.Task[None]] = set()

    async def keep(self, checkpoint: TurnCheckpoint) -> bool:
        """Returns whether it is kept, once that is durable. See SessionStore.keep_checkpoint."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._begin_to_write)
        kept: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((checkpoint, kept))
        return await kept

    async def close(self) -> None:
        """Returns once all that is to be kept by now is, or has failed."""
        self._begin_to_write()
        while self._writes:
            await asyncio.wait(self._writes)

    def _begin_to_write(self) -> None:
        # Those that nobody waits for any more are of turns that have ended.
        wanted = [each for each in self._waiting if not each[1].done()]
        self._waiting = []
        for start in range(0, len(wanted), MAX_BATCH):
            write = asyncio.create_task(self._write(wanted[start : start + MAX_BATCH]))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)

    async def _write(self, batch: Sequence[Waiting]) -> None:
        checkpoints, epoch = [checkpoint for checkpoint, _ in batch], self._epoch
        try:
            outcomes = await self._writer.run(
                lambda file: write_checkpoints(file, checkpoints, epoch=epoch)
            )
        except AntiphonError as error:
            if len(batch) > 1:
                # What is wrong with one of them is not the others'.
                await asyncio.gather(*(self._write([each]) for each in batch))
            else:
                _fail(batch, error)
        except BaseException as error:
            # Whatever it is: who waits has no bound of its own.
            _fail(batch, error)
            raise
        else:
            for (_, kept), outcome in zip(batch, outcomes, strict=True):
                if not kept.done():
                    kept.set_result(outcome)


def _fail(batch: Sequence[Waiting], error: BaseException) -> None:
    for _, kept in batch:
        if isinstance(error, asyncio.CancelledError):
            kept.cancel()
        elif not kept.done():
            kept.set_exception(error)
