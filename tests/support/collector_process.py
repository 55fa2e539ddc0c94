"""A collector in a process of its own, so that what it does costs nobody who is measured."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import cast

from support.otlp_sink import Mood, OtlpSink

_START_LIMIT_S = 120.0
_SLACK_S = 30.0
"""How much longer than it may wait it may take to say so."""


class Collector:
    """An OtlpSink elsewhere. Each call blocks its thread."""

    def __init__(self, connection: Connection, endpoint: str) -> None:
        self._connection = connection
        self.endpoint = endpoint

    def wait_for(self, num: int, name: str, *, limit_s: float = 30.0) -> int:
        """Waits until there are so many spans of a name, but not too long; returns how many."""
        return self._ask("wait_for", num, name, limit_s)

    def forget(self) -> None:
        """Lets go of what it has taken."""
        self._ask("forget", 0, "", 0.0)

    def _ask(self, what: str, num: int, name: str, limit_s: float) -> int:
        self._connection.send((what, num, name, limit_s))
        assert self._connection.poll(limit_s + _SLACK_S), "the collector does not answer"
        return cast(int, self._connection.recv())


@contextmanager
def collecting(mood: Mood, *, delay_s: float = 0.0) -> Iterator[Collector]:
    """Runs a collector until the block ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_collect, args=(theirs, mood, delay_s), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(_START_LIMIT_S), "the collector does not start"
        yield Collector(ours, cast(str, ours.recv()))
    finally:
        ours.close()  # It ends by that.
        process.join(_SLACK_S)
        process.kill()


def _collect(connection: Connection, mood: Mood, delay_s: float) -> None:
    with OtlpSink(mood=mood, delay_s=delay_s).listening() as sink:
        connection.send(sink.endpoint)
        while True:
            try:
                what, num, name, limit_s = connection.recv()
            except EOFError:
                return
            if what == "forget":
                sink.forget()
            connection.send(_num_behind(sink, num, name, limit_s))


def _num_behind(sink: OtlpSink, num: int, name: str, limit_s: float) -> int:
    try:
        return len(sink.wait_for(num, name, limit_s=limit_s))
    except AssertionError:
        return len(sink.named(name))
