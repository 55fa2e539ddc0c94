"""The checker's workers: forks of a process that has loaded everything, each in hand of one job.

A fork costs milliseconds where a new process would cost seconds, so a worker that takes too long is
killed without regret, and whatever a job breaks ends with it.
"""

import gc
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from antiphon_engine.api.frames import FrameReader, encode_frame
from antiphon_engine.api.parent_process import end_with_parent
from antiphon_server.constraints.check_messages import (
    Answer,
    Died,
    Finding,
    Job,
    Overrun,
    WorkerLimits,
)

Work = Callable[[Job], Finding]

_RECEIVE_BYTES: Final = 1 << 16
_WALL_PER_CPU: Final = 12.0
"""A job may take so many times its processor time, since others have the processor first."""
_WALL_EXTRA_S: Final = 1.0
_SHORTEST_LOOK_S: Final = 0.005
_FIRST_DESCRIPTOR: Final = 3
_LAST_DESCRIPTOR: Final = 1 << 20
_CPU_CLOCK: Final = 2


class Lane:
    """Jobs of one sort, and the workers that take them one after the other.

    Used by one thread. Whoever runs the loop calls `advance` when a pipe can be read and at
    `next_look_s`.
    """

    def __init__(self, work: Work, *, num_workers: int, limits: WorkerLimits) -> None:
        """Sets what workers do: what it raises ends the worker. At most so many are there."""
        self._work = work
        self._num_workers = num_workers
        self._limits = limits
        self._waiting: deque[Job] = deque()
        self._workers: list[_Worker] = []
        self._retried: set[int] = set()

    def add(self, job: Job) -> None:
        """Takes a job in."""
        self._waiting.append(job)

    @property
    def pipes(self) -> list[socket.socket]:
        """What tells of workers when it can be read."""
        return [worker.pipe for worker in self._workers]

    def next_look_s(self) -> float | None:
        """Returns in how long a job may be over its limits; None: none runs."""
        busy = [worker.left_s(self._limits) for worker in self._workers if worker.job]
        return max(_SHORTEST_LOOK_S, min(busy)) if busy else None

    def advance(self) -> list[Answer]:
        """Does what is due: takes answers, ends what is over its limits, hands jobs out."""
        answers: list[Answer] = []
        for worker in list(self._workers):
            answers += worker.receive()
            if worker.job is not None and worker.left_s(self._limits) <= 0:
                answers.append(Overrun(job_id=worker.job.job_id))
                worker.job = None
                worker.kill()
            if worker.gone:
                self._workers.remove(worker)
                answers += self._ended(worker)
        self._hand_out()
        for answer in answers:
            self._retried.discard(answer.job_id)
        return answers

    def _hand_out(self) -> None:
        while self._waiting:
            worker = next((each for each in self._workers if each.job is None), None)
            if worker is None and len(self._workers) < self._num_workers:
                worker = _Worker.fork(self._work, self._limits)
                self._workers.append(worker)
            if worker is None:
                return
            worker.give(self._waiting.popleft())

    def _ended(self, worker: "_Worker") -> list[Answer]:
        """Returns what is told of a worker's end; a job that it was no fault of is given again."""
        status = worker.wait()
        job, worker.job = worker.job, None
        if job is None:
            return []
        if status in (0, -signal.SIGKILL) and job.job_id not in self._retried:
            self._retried.add(job.job_id)
            self._waiting.appendleft(job)
            return []
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return [Died(job_id=job.job_id, how=how)]


class _Worker:
    """A forked process and this process's end of the pipe to it."""

    def __init__(self, process_id: int, pipe: socket.socket) -> None:
        self.pipe: Final = pipe
        self.job: Job | None = None
        self.gone = False
        self._process_id = process_id
        self._reader: FrameReader[Finding] = FrameReader(msgspec.msgpack.Decoder(Finding))
        self._begun_cpu_s = 0.0
        self._begun_s = 0.0

    @classmethod
    def fork(cls, work: Work, limits: WorkerLimits) -> "_Worker":
        """Starts one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # Memory that both have stays shared as long as no collection looks at it.
        gc.collect()
        gc.freeze()
        process_id = os.fork()
        if process_id == 0:
            _work_in_fork(theirs, work, limits)
        theirs.close()
        ours.setblocking(False)
        return cls(process_id, ours)

    def give(self, job: Job) -> None:
        """Hands it a job."""
        self.job = job
        self._begun_cpu_s = self._cpu_s()
        self._begun_s = time.monotonic()
        self.pipe.setblocking(True)
        try:
            self.pipe.sendall(encode_frame(job))
        except OSError:
            self.gone = True  # Its end is told when it is waited for.
        self.pipe.setblocking(False)

    def receive(self) -> list[Finding]:
        """Returns the answers that have come, and notes whether it has gone."""
        findings: list[Finding] = []
        while not self.gone:
            try:
                data = self.pipe.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.gone = not data
            findings += self._reader.feed(data)
        if findings:
            self.job = None
        return findings

    def left_s(self, limits: WorkerLimits) -> float:
        """Returns how long its job may still take, at least; zero or less: nothing."""
        cpu_s = limits.cpu_s - (self._cpu_s() - self._begun_cpu_s)
        wall_s = limits.cpu_s * _WALL_PER_CPU + _WALL_EXTRA_S - (time.monotonic() - self._begun_s)
        return min(cpu_s, wall_s)

    def kill(self) -> None:
        """Ends it at once."""
        os.kill(self._process_id, signal.SIGKILL)
        self.gone = True

    def wait(self) -> int:
        """Waits for its end, which has come, and returns its exit status or minus its signal."""
        self.pipe.close()
        _, status = os.waitpid(self._process_id, 0)
        return os.waitstatus_to_exitcode(status)

    def _cpu_s(self) -> float:
        """Returns the processor time that it has had."""
        try:
            # As clock_getcpuclockid(3) makes the clock of a process.
            return time.clock_gettime(~self._process_id << 3 | _CPU_CLOCK)
        except OSError:
            return self._begun_cpu_s  # It has ended.


def _work_in_fork(pipe: socket.socket, work: Work, limits: WorkerLimits) -> NoReturn:
    """Answers jobs until the pipe ends; never returns into what was forked."""
    status = 1
    try:
        # Nobody else's end of a pipe or link may stay open here.
        os.closerange(_FIRST_DESCRIPTOR, pipe.fileno())
        os.closerange(pipe.fileno() + 1, _LAST_DESCRIPTOR)
        # Whoever forked it can be killed without a word.
        end_with_parent()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        size_bytes = _size_bytes()
        _limit_memory(size_bytes + limits.memory_bytes)
        reader: FrameReader[Job] = FrameReader(msgspec.msgpack.Decoder(Job))
        while data := pipe.recv(_RECEIVE_BYTES):
            for job in reader.feed(data):
                pipe.sendall(encode_frame(work(job)))
                if _size_bytes() > size_bytes + limits.memory_bytes // 2:
                    os._exit(0)  # The next job has the room that it may take in a new one.
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        os._exit(status)


def _limit_memory(num_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _size_bytes() -> int:
    """Returns the address space of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()
