"""A checker of constraints that takes every one and believes every output. It starts in no time.

The engine beside it makes what is checked, and enforces nothing.
"""

import socket
import sys
from pathlib import Path

import msgspec

from antiphon_engine.api.frames import FrameReader, encode_frame
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.api.linked_process import link_of_this_process, read_start
from antiphon_server.constraints.check_messages import (
    Check,
    CheckerStart,
    Job,
    Loaded,
    Planned,
    Verified,
)

_RECEIVE_BYTES = 1 << 16


def trusting_checker_command() -> list[str]:
    """Returns the command that runs it."""
    tests = str(Path(__file__).parents[1])
    program = (
        f"import sys; sys.path.insert(0, {tests!r})\n"
        "from torture.trusting_checker_process import main; sys.exit(main())"
    )
    return [sys.executable, "-c", program]


def main() -> int:
    link = link_of_this_process(sys.argv[1:])
    read_start(sys.stdin.buffer, CheckerStart)
    try:
        _answer(link)
    except (BrokenPipeError, ConnectionResetError):
        return 3  # The front end was killed.
    return 0


def _answer(link: socket.socket) -> None:
    reader: FrameReader[Job] = FrameReader(msgspec.msgpack.Decoder(Job))
    link.sendall(encode_frame(Loaded()))
    while data := link.recv(_RECEIVE_BYTES):
        for job in reader.feed(data):
            link.sendall(encode_frame(_planned(job) if isinstance(job, Check) else _verified(job)))


def _planned(job: Check) -> Planned:
    grammar = Grammar(backend=GrammarBackend.LLGUIDANCE, text="start: /(.|\\n)*/")
    return Planned(job_id=job.job_id, grammar=grammar, compile_ns=1)


def _verified(job: Job) -> Verified:
    return Verified(job_id=job.job_id)
