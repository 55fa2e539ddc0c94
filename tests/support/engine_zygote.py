"""Engine processes that start in a moment: a process that has imported torch, and forks for each.

`forked` returns a command for `EngineLink.start`. What that runs is small: it hands its files to
the zygote, waits for the engine that is forked for it, and ends as that does. When it is killed,
the engine is. Its process id is not the engine's, though: who stops the engine, or reads what it
uses, runs it by the command that was given.
"""

import atexit
import contextlib
import gc
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import antiphon_engine.loading
from antiphon_engine.__main__ import main as engine_main
from support.scripted_engine import Script, write_script
from support.scripted_engine import main as scripted_main

_MAINS = {"antiphon_engine": engine_main, "support.scripted_engine": scripted_main}
_LAUNCHER = Path(__file__).with_name("engine_launcher.py")
_MAX_REQUEST_BYTES = 1 << 17
_NUM_FILES = 4
"""Standard input, output, error, and the link."""
_END_LIMIT_S = 10.0


def forked(main: str, arguments: Sequence[str] = ()) -> list[str]:
    """Returns the command that has this process's zygote fork an engine.

    Args:
        main: The module of the engine's main function.
        arguments: Of its command line.
    """
    return [sys.executable, "-I", "-S", str(_LAUNCHER), _zygote_name(), main, *arguments]


def fork_script(path: Path, script: Script) -> list[str]:
    """As `write_script`, by a fork."""
    _, _, *arguments = write_script(path, script)
    return forked("support.scripted_engine", arguments)


@cache
def _zygote_name() -> str:
    """Starts this process's zygote; returns the name of its socket."""
    name = f"antiphon-engine-zygote-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # Launchers may call from now on: they wait for the imports.
        listener.bind(f"\0{name}")
        listener.listen()
        tests = str(Path(__file__).parents[1])
        program = (
            f"import sys; sys.path.insert(0, {tests!r})\n"
            f"from support.engine_zygote import serve; serve({listener.fileno()})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            # Its threads would not be there in a fork.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
    atexit.register(process.communicate, timeout=_END_LIMIT_S)
    return name


def serve(listener_fd: int) -> None:
    """Forks engines until standard input ends; kills them all then."""
    # All that an engine imports as it starts is here by now.
    assert "torch" in sys.modules
    assert antiphon_engine.loading
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    _Zygote(socket.socket(fileno=listener_fd)).run()


class _Zygote:
    """Has an engine for each launcher that is connected."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._engine_ids: dict[socket.socket, int] = {}

    def run(self) -> None:
        """Serves until standard input ends."""
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._kill_all()
                    return
                key.data()

    def _accept(self) -> None:
        launcher, _ = self._listener.accept()
        said, files = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            said, files, _, _ = socket.recv_fds(launcher, _MAX_REQUEST_BYTES, _NUM_FILES)
        if len(files) < _NUM_FILES:  # It was killed before it could say what it wants.
            launcher.close()
            return
        engine_id = os.fork()
        if not engine_id:
            _be_engine(json.loads(said), files)
        for file in files:
            os.close(file)
        self._engine_ids[launcher] = engine_id
        engine = os.pidfd_open(engine_id)
        self._selector.register(engine, selectors.EVENT_READ, lambda: self._reap(launcher, engine))
        self._selector.register(launcher, selectors.EVENT_READ, lambda: self._kill(launcher))

    def _kill(self, launcher: socket.socket) -> None:
        """Kills the engine whose launcher has ended."""
        if launcher not in self._engine_ids:
            return  # Both ended at once, and the engine was seen first.
        self._selector.unregister(launcher)
        os.kill(self._engine_ids[launcher], signal.SIGKILL)

    def _reap(self, launcher: socket.socket, engine: int) -> None:
        """Tells a launcher how its engine ended."""
        self._selector.unregister(engine)
        os.close(engine)
        _, status = os.waitpid(self._engine_ids.pop(launcher), 0)
        if launcher in self._selector.get_map():
            self._selector.unregister(launcher)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                launcher.send(str(os.waitstatus_to_exitcode(status)).encode())
        launcher.close()

    def _kill_all(self) -> None:
        for engine_id in self._engine_ids.values():
            os.kill(engine_id, signal.SIGKILL)


def _be_engine(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Runs an engine's main function in the place of the launcher, and ends this process."""
    status = 1
    try:
        os.setsid()
        *standard, link = files
        for target, source in enumerate(standard):
            os.dup2(source, target)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != link:
                with contextlib.suppress(OSError):  # Of the listing itself.
                    os.close(int(name))
        main, *arguments = request["command"]
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["directory"])
        sys.argv = [main, *arguments[:-1], str(link)]
        status = _MAINS[main]()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
