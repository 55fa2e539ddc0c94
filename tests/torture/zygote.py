"""Starts front ends in a moment: a process that has imported all of one, and forks for each.

It has made no gRPC object, so its forks may. Commands come as lines on standard input, answers go
as lines to standard output. Orphans of dead front ends become its children, so it knows of them.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from antiphon_server import serve
from antiphon_server.settings import load_config
from support.serve_command import children_of

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndSpec:
    """What a front end is started with."""

    settings: Sequence[str]
    engine_command: Sequence[str] | None
    """None: the real engine."""
    checker_command: Sequence[str] | None
    """None: the real checker."""
    home: str
    log_path: str
    """Where its log is appended."""

    def to_line(self) -> str:
        """Returns it as one line."""
        return json.dumps(
            {
                "settings": list(self.settings),
                "engine_command": self.engine_command and list(self.engine_command),
                "checker_command": self.checker_command and list(self.checker_command),
                "home": self.home,
                "log_path": self.log_path,
            }
        )


def serve_commands() -> int:
    """Forks front ends and lists children until standard input ends; ends them all then."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, _reap)
    # Its forks would look at all of this again, and copy it by that.
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a process with threads must not fork"
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        if command == "start":
            answer = str(_fork(FrontEndSpec(**json.loads(rest))))
        else:
            assert command == "children"
            answer = json.dumps(children_of(os.getpid()))
        print(answer, flush=True)
    for process_id in children_of(os.getpid()):
        os.kill(process_id, signal.SIGKILL)
    return 0


def _fork(spec: FrontEndSpec) -> int:
    process_id = os.fork()
    if process_id:
        return process_id
    status = 1
    try:
        status = _be_front_end(spec)
    finally:
        os._exit(status)


def _be_front_end(spec: FrontEndSpec) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(spec.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    config = load_config(list(spec.settings), None, {"HOME": spec.home})
    return serve.run(
        config, engine_command=spec.engine_command, checker_command=spec.checker_command
    )


def _reap(_number: int, _frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def zygote_command() -> list[str]:
    """Returns what runs a zygote."""
    tests = str(Path(__file__).parents[1])
    program = (
        f"import sys; sys.path.insert(0, {tests!r})\n"
        "from torture.zygote import serve_commands; serve_commands()"
    )
    return [sys.executable, "-c", program]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns a zygote's environment: tokenizers must start no threads before a fork."""
    return {**inherited, "TOKENIZERS_PARALLELISM": "false"}
