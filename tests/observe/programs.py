"""The programs that stand beside each other, each with a log of its own."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

END_LIMIT_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is run, and how to see that it is ready."""

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    environ: Mapping[str, str] = field(default_factory=dict)
    start_limit_s: float = 240.0


class StartError(Exception):
    """A program ended at its start, or took too long."""


@contextmanager
def running(program: Program, logs: Path) -> Iterator[None]:
    """Runs a program until the block ends; enters the block once it answers."""
    log = logs / f"{program.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            program.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **program.environ},
            # Ctrl-C is for this program, which ends the others in order.
            start_new_session=True,
        )
    try:
        deadline_s = time.monotonic() + program.start_limit_s
        while not program.is_ready():
            if process.poll() is not None:
                raise StartError(f"{program.name} ended with {process.returncode}; see {log}")
            if time.monotonic() > deadline_s:
                raise StartError(
                    f"{program.name} isn't ready after {program.start_limit_s:g} s; see {log}"
                )
            time.sleep(0.3)
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    """Whether a page can be read."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


def read_json(url: str) -> dict[str, object]:
    """Returns what an API answers."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        told = json.load(answer)
    assert isinstance(told, dict), told
    return told


def port_near(wanted: int) -> int:
    """Returns a port of the loopback address that is free: `wanted`, where it is."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StartError("no port is free")
