"""Workers that can be killed: a schema that hangs, crashes or eats memory costs one answer."""

import gc
import multiprocessing
import os
import resource
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Generic, TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Crash(Exception):  # noqa: N818 - an answer
    """The worker ended, or the work raised something."""


class Overrun(Exception):  # noqa: N818 - an answer
    """The work took too long and was ended."""


class Workers(Generic[Task, Answer]):
    """Processes forked from this one, each with one task at a time."""

    def __init__(
        self, work: Callable[[Task], Answer], *, num_workers: int, limit_s: float, more_bytes: int
    ) -> None:
        self._work = work
        self._num_workers = num_workers
        self._limit_s = limit_s
        self._more_bytes = more_bytes
        self._context = multiprocessing.get_context("fork")

    def map(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Answer | Crash | Overrun]]:
        """Yields each task's number with its answer, as they come."""
        waiting = deque(enumerate(tasks))
        busy: list[_Busy] = []
        idle: list[tuple[BaseProcess, Connection]] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < self._num_workers:
                    number, task = waiting.popleft()
                    process, link = idle.pop() if idle else self._start()
                    link.send(task)
                    busy.append(_Busy(number, process, link, monotonic() + self._limit_s))
                first_end = min(each.ends_at for each in busy)
                wait([each.link for each in busy], max(first_end - monotonic(), 0))
                for each in list(busy):
                    answer = each.answer()
                    if answer is None:
                        continue
                    busy.remove(each)
                    if isinstance(answer, Overrun) or not each.process.is_alive():
                        each.end()
                    else:
                        idle.append((each.process, each.link))
                    yield each.number, answer
        finally:
            for each in busy:
                each.end()
            for process, link in idle:
                link.close()
                process.join()

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=self._serve, args=(ours, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _serve(self, ours: Connection, link: Connection) -> None:
        ours.close()
        with open("/proc/self/statm", encoding="ascii") as sizes:
            used_bytes = int(sizes.read().split()[0]) * resource.getpagesize()
        limit = used_bytes + self._more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Libraries warn there, of each schema.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        # As the checker's workers: no collection goes through what was there before the work. Here
        # that is all cases, and a mask would be charged with it.
        gc.freeze()
        while True:
            try:
                task = link.recv()
            except EOFError:
                return
            try:
                link.send(self._work(task))
            except BaseException as error:
                link.send(Crash(f"{type(error).__name__}: {error}"))


class _Busy:
    """A worker at work."""

    def __init__(self, number: int, process: BaseProcess, link: Connection, ends_at: float) -> None:
        self.number = number
        self.process = process
        self.link = link
        self.ends_at = ends_at

    def answer(self) -> "object | None":
        """Returns what it answers, or what became of it; None while it works."""
        if self.link.poll():
            try:
                return self.link.recv()
            except EOFError:
                self.process.join()
                return Crash(f"the process ended with {self.process.exitcode}")
        return Overrun("out of time") if monotonic() >= self.ends_at else None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()
