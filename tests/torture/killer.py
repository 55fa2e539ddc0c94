"""Kills at random moments, starts again what does not start itself, and sees that it comes up."""

import asyncio
import random

from torture.tally import Kind, Tally, ViolationError
from torture.victim import Victim

KINDS = ("engine", "engine", "front_end", "front_end", "both")
_PROGRESS_EVERY = 50


class Killer:
    """Carries out a schedule that its seed decides."""

    def __init__(self, victim: Victim, tally: Tally, *, seed: int, calm_s: float) -> None:
        """Sets the schedule.

        Args:
            victim: Who is killed.
            tally: Where kills are counted.
            seed: Decides all.
            calm_s: The longest time between the server's being up and the next kill.
        """
        self._victim = victim
        self._tally = tally
        self._rng = random.Random(f"{seed}/killer")
        self._calm_s = calm_s

    async def kill(self, num_kills: int) -> None:
        """Kills so many times; the server is up again behind the last one."""
        while self._victim.num_kills < num_kills and not self._tally.hopeless:
            kind = self._rng.choice(KINDS)
            # Now and then while it is still coming up.
            impatient = self._rng.random() < 0.15
            calm_s = self._rng.random() ** 2 * self._calm_s
            if not impatient:
                await self._wait_up()
            await asyncio.sleep(calm_s)
            if not await self._victim.kill(kind):
                continue
            self._tally.counts["kills"] += 1
            self._tally.counts[f"kills_{kind}"] += 1
            self._tally.note(f"kill {self._victim.num_kills}: {kind}")
            if kind != "engine":
                await self._victim.start()
            if self._victim.num_kills % _PROGRESS_EVERY == 0:
                self._tell_progress(num_kills)
        await self._wait_up()

    async def _wait_up(self) -> None:
        if not await self._victim.wait_up():
            self._tally.report(ViolationError(Kind.UNRESUMED, "the server did not come up again"))

    def _tell_progress(self, num_kills: int) -> None:
        figures = self._tally.figures()
        print(
            f"{figures['seconds']:.0f} s: {figures['kills']} of {num_kills} kills,"
            f" {figures['turns_acknowledged']} turns, {len(self._tally.faults)} faults",
            flush=True,
        )
