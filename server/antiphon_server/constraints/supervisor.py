"""The checker process's loop: jobs come from the front end, go to workers, and come back."""

import select
import socket
from typing import Final

import msgspec

from antiphon_engine.api.frames import FrameReader, encode_frame
from antiphon_server.constraints.check_messages import Check, Job, Loaded, WorkerLimits
from antiphon_server.constraints.workers import Lane, Work

_RECEIVE_BYTES: Final = 1 << 16


class Supervisor:
    """Hands jobs to workers and answers them, until the front end has gone.

    Finished outputs have a worker to themselves: they don't wait behind constraints that take long.
    """

    def __init__(
        self, link: socket.socket, work: Work, *, num_workers: int, limits: WorkerLimits
    ) -> None:
        self._link = link
        self._reader: FrameReader[Job] = FrameReader(msgspec.msgpack.Decoder(Job))
        self._checks = Lane(work, num_workers=num_workers, limits=limits)
        self._finished = Lane(work, num_workers=1, limits=limits)

    def run(self) -> None:
        """Works until the front end has gone."""
        self._link.sendall(encode_frame(Loaded()))
        lanes = (self._checks, self._finished)
        while True:
            looks = [look_s for lane in lanes if (look_s := lane.next_look_s()) is not None]
            pipes = [pipe for lane in lanes for pipe in lane.pipes]
            readable, _, _ = select.select([self._link, *pipes], [], [], min(looks, default=None))
            if self._link in readable and not self._receive():
                return
            for lane in lanes:
                for answer in lane.advance():
                    self._link.sendall(encode_frame(answer))

    def _receive(self) -> bool:
        """Takes jobs in; false: none will come any more."""
        data = self._link.recv(_RECEIVE_BYTES)
        for job in self._reader.feed(data):
            lane = self._checks if isinstance(job, Check) else self._finished
            lane.add(job)
        return bool(data)
