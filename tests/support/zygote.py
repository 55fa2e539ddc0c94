"""A process that has imported all that tests start, and forks for each: what starts costs a moment.

Who asks sends standard input, output, error and what to run, and is told the process id, and how it
ended. A process whose asker is gone is killed, and so are all when the zygote's standard input
ends. The run's processes share one zygote; see `tests/conftest.py`.

The larger a process is, the longer its forks take to start and to end. So a zygote has stages: each
is a fork of the one before and imports more, and what is asked for is passed on until a stage has
it. A front end is forked before PyTorch is there.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Never, TypeAlias

NAME_VARIABLE = "TESTS_ZYGOTE"
"""Has the name of the socket of the zygote that a run shares."""
_MAX_REQUEST_BYTES = 1 << 17
_MAX_FILES = 4
"""Standard input, output, error, and an engine's link."""
_END_LIMIT_S = 10.0
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """What a zygote's process adds to the one before it."""

    mains: str
    """The module whose `MAINS` has the main functions of its forks by name."""
    modules: tuple[str, ...] = ()
    """What it imports beside that."""
    tests: tuple[str, ...] = ()
    """What it collects, as pytest's arguments: test processes find the modules imported."""


_FRONT_END = Stage("support.front_end_mains")
_ENGINE = Stage("support.engine_mains", ("antiphon_engine.loading",))


def zygote_name(modules: Sequence[str] = (), tests: Sequence[str] = ()) -> str:
    """Returns the name of the zygote's socket; starts one where the run has none.

    Args:
        modules: What test processes import beside what engines and front ends start with.
        tests: What they collect.
    """
    return os.environ.get(NAME_VARIABLE) or _zygote_of_this_process((*modules,), (*tests,))


@cache
def _zygote_of_this_process(modules: tuple[str, ...], tests: tuple[str, ...]) -> str:
    workers = [Stage("support.worker_mains", modules, tests)] if tests else []
    name, process = start_zygote([_FRONT_END, _ENGINE, *workers])
    atexit.register(process.communicate, timeout=_END_LIMIT_S)
    return name


def start_zygote(stages: Sequence[Stage]) -> tuple[str, subprocess.Popen[bytes]]:
    """Starts a zygote, whose forks end with it; returns its socket's name and its process."""
    name = f"antiphon-zygote-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # Who asks may call from now on: they wait for the imports.
        listener.bind(f"\0{name}")
        listener.listen()
        asked = [astuple(stage) for stage in stages]
        program = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
            f"from support.zygote import serve; serve({listener.fileno()}, {asked!r})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            # Its threads would not be there in a fork, and what readline knows of a terminal would.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TERM": "dumb"},
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
    return name, process


def launcher_command(modules: Sequence[str] = (), tests: Sequence[str] = ()) -> list[str]:
    """Returns a command: with a main function and its arguments behind, it stands for a fork."""
    return launcher_of(zygote_name(modules, tests))


def running_launcher() -> list[str] | None:
    """Returns the same where a zygote runs already; None: it would have to be started first."""
    has_started = _zygote_of_this_process.cache_info().currsize > 0
    return launcher_command() if has_started or NAME_VARIABLE in os.environ else None


def launcher_of(name: str) -> list[str]:
    """Returns the same for a zygote of one's own."""
    launcher = Path(__file__).with_name("fork_launcher.py")
    return [sys.executable, "-I", "-S", str(launcher), name]


def serve(listener_fd: int, stages: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]]) -> None:
    """Forks until standard input ends; kills all that still runs then."""
    _serve_stages(_Listener(socket.socket(fileno=listener_fd)), [Stage(*each) for each in stages])


def _serve_stages(source: "_Source", stages: Sequence[Stage]) -> None:
    """Serves the first stage, and the others in a fork."""
    stage, *later = stages
    for module in stage.modules:
        importlib.import_module(module)
    mains: Mapping[str, Callable[[], int]] = importlib.import_module(stage.mains).MAINS
    if stage.tests:
        _import_tests(stage.tests)
    # Forks would look at all of this again, and copy it by that.
    gc.collect()
    gc.freeze()
    num_threads = len(os.listdir("/proc/self/task"))
    assert num_threads == 1, (
        f"a process with threads must not fork, and this one has {num_threads}: a module started"
        " them as it was imported, for instance by a large tensor in a test's parameters"
    )
    if not later:
        _Zygote(source, mains, None).run()
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote_id, heir_id = os.getpid(), os.fork()
    if not heir_id:
        _end_with(zygote_id)
        source.socket.close()
        ours.close()
        _be_heir(theirs, later)
    theirs.close()
    _Zygote(source, mains, ours).run()
    os.kill(heir_id, signal.SIGKILL)
    os.waitpid(heir_id, 0)


def _be_heir(passed_on: socket.socket, stages: Sequence[Stage]) -> Never:
    status = 1
    try:
        _serve_stages(_Heritage(passed_on), stages)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _import_tests(tests: Sequence[str]) -> None:
    """Has pytest import tests as it does in a test process, where it then finds them imported.

    What can't be imported is told there.
    """
    import pytest

    class OnlyImports:
        """Has nothing made of the modules but Hypothesis's, which then reads its constants."""

        @staticmethod
        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
            from hypothesis import is_hypothesis_test

            return None if is_hypothesis_test(obj) else []

    arguments = ["--collect-only", "-qq", "-n0", "-pno:cacheprovider", *tests]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        pytest.main(arguments, plugins=[OnlyImports()])


@dataclass(frozen=True, slots=True)
class _Asked:
    """A process that somebody asks for."""

    asker: socket.socket
    said: bytes
    files: Sequence[int]


class _Listener:
    """Askers that connect."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket = listener

    def receive(self) -> _Asked | None:
        """Returns who connects; None: it was killed before it could say what it wants."""
        asker, _ = self.socket.accept()
        with contextlib.suppress(ConnectionResetError):
            said, files, _, _ = socket.recv_fds(asker, _MAX_REQUEST_BYTES, _MAX_FILES)
            if said:
                return _Asked(asker, said, files)
        asker.close()
        return None


class _Heritage:
    """Askers whom the stage before passes on."""

    def __init__(self, passed_on: socket.socket) -> None:
        self.socket = passed_on

    def receive(self) -> _Asked | None:
        """Returns the next one; None: the stage before is gone, and this one is about to be."""
        said, files, _, _ = socket.recv_fds(self.socket, _MAX_REQUEST_BYTES, 1 + _MAX_FILES)
        return _Asked(socket.socket(fileno=files[0]), said, files[1:]) if said else None


_Source: TypeAlias = _Listener | _Heritage


class _Zygote:
    """Has a process for each asker that is connected, or passes the asker on."""

    def __init__(
        self,
        source: _Source,
        mains: Mapping[str, Callable[[], int]],
        heir: socket.socket | None,
    ) -> None:
        self._source = source
        self._mains = mains
        self._heir = heir
        """Leads to the next stage."""
        self._selector = selectors.DefaultSelector()
        self._process_ids: dict[socket.socket, int] = {}

    def run(self) -> None:
        """Serves until standard input ends."""
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._selector.register(self._source.socket, selectors.EVENT_READ, self._accept)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._kill_all()
                    return
                key.data()

    def _accept(self) -> None:
        asked = self._source.receive()
        if asked is None:
            return
        request = marshal.loads(asked.said)
        if self._heir is None or request["command"][0] in self._mains:
            self._fork(asked.asker, request, asked.files)
        else:
            passed = [asked.asker.fileno(), *asked.files]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._heir, [asked.said], passed)
            asked.asker.close()
        for file in asked.files:
            os.close(file)

    def _fork(self, asker: socket.socket, request: Mapping[str, Any], files: Sequence[int]) -> None:
        zygote_id, process_id = os.getpid(), os.fork()
        if not process_id:
            _end_with(zygote_id)
            _be(self._mains, request, files)
        self._process_ids[asker] = process_id
        self._tell(asker, process_id)
        process = os.pidfd_open(process_id)
        self._selector.register(process, selectors.EVENT_READ, lambda: self._reap(asker, process))
        self._selector.register(asker, selectors.EVENT_READ, lambda: self._kill(asker))

    def _kill(self, asker: socket.socket) -> None:
        """Kills the process whose asker has ended."""
        if asker not in self._process_ids:
            return  # Both ended at once, and the process was seen first.
        self._selector.unregister(asker)
        os.kill(self._process_ids[asker], signal.SIGKILL)

    def _reap(self, asker: socket.socket, process: int) -> None:
        """Tells an asker how its process ended."""
        self._selector.unregister(process)
        os.close(process)
        _, status = os.waitpid(self._process_ids.pop(asker), 0)
        if asker in self._selector.get_map():
            self._selector.unregister(asker)
            self._tell(asker, os.waitstatus_to_exitcode(status))
        asker.close()

    def _tell(self, asker: socket.socket, number: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            asker.send(str(number).encode())

    def _kill_all(self) -> None:
        for process_id in self._process_ids.values():
            os.kill(process_id, signal.SIGKILL)


def _end_with(zygote_id: int) -> None:
    """Has this fork killed when the zygote ends, however that does."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote_id:
        os._exit(1)


def _be(
    mains: Mapping[str, Callable[[], int]], request: Mapping[str, Any], files: Sequence[int]
) -> None:
    """Runs a main function with the files and the place of who asked, and ends this process."""
    status = 1
    try:
        os.setsid()
        standard, kept = files[:3], files[3:]
        for target, source in enumerate(standard):
            os.dup2(source, target)
        # The zygote's own ones know whether its files can be sought in, and these can't.
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in kept:
                with contextlib.suppress(OSError):  # Of the listing itself.
                    os.close(int(name))
        main, *arguments = request["command"]
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["directory"])
        sys.argv = [main, *arguments, *map(str, kept)]
        status = mains[main]()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
