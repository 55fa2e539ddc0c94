"""`antiphon serve` as people run it: a process of its own, with its engine's below it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.forked_process import ForkedProcess


@dataclass
class Command:
    """A server process and what it said."""

    process: subprocess.Popen[str] | ForkedProcess

    def read_ready_line(self) -> str:
        """Waits for the ready line; the process ending first is a failure."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.strip()

    def read_address(self) -> str:
        """Waits until calls are answered and returns where."""
        return address_in(self.read_ready_line())

    def engine_id(self) -> int:
        """Returns the process id of its engine."""
        (engine_id,) = engines_of(self.process.pid)
        return engine_id

    def end(self, number: int = signal.SIGTERM, limit_s: float = 60.0) -> tuple[int, str]:
        """Sends a signal; returns the exit status and what was on standard error."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=limit_s)
        return self.process.returncode, log


class Runner:
    """Starts servers in one folder and with one checkpoint, each with a session store of its own.

    Flags of a start win over all of that.
    """

    def __init__(
        self, directory: Path, checkpoint: Path, engine_command: Sequence[str] | None
    ) -> None:
        self.directory = directory
        self.checkpoint = checkpoint
        self._engine_command = engine_command
        self.commands: list[Command] = []

    def start(
        self, *flags: str, environ: Sequence[tuple[str, str]] = (), streams: str = ""
    ) -> Command:
        """Starts a server on ports that the system chooses, unless the flags say others.

        Args:
            flags: Of the command.
            environ: Set beside this process's.
            streams: What a shell would do to its standard streams, such as `>&-`.
        """
        store = self.directory / f"sessions-{len(self.commands)}.db"
        words = [
            *("--model", str(self.checkpoint), "--store", str(store)),
            *("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
            *("--set", "engine.kv_cache_tokens=4096", "--set", "engine.num_threads=1"),
            *("--set", "constraints.load_at_start=false"),
            *flags,
        ]
        process: subprocess.Popen[str] | ForkedProcess
        environment = {**_environment(), "HOME": str(self.directory), **dict(environ)}
        if self._engine_command is None:
            command = ["antiphon_cli.main", "serve", *words]
            process = self._spawn(command, environment, streams)
        elif streams:
            command = ["support.serve_by_forks", json.dumps([*self._engine_command]), *words]
            environment["PYTHONPATH"] = str(Path(__file__).parents[1])
            process = self._spawn(command, environment, streams)
        else:
            command = ["antiphon_serve", json.dumps([*self._engine_command]), *words]
            process = ForkedProcess(command, environ=environment, directory=self.directory)
        self.commands.append(Command(process))
        return self.commands[-1]

    def _spawn(
        self, command: Sequence[str], environ: Mapping[str, str], streams: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", *command],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
        )

    def run(self, *flags: str, environ: Sequence[tuple[str, str]] = ()) -> tuple[int, str]:
        """Runs a server that is to end by itself; returns exit status and standard error."""
        process = self.start(*flags, environ=environ).process
        _, log = process.communicate(timeout=60)
        return process.returncode, log


def _environment() -> dict[str, str]:
    """This process's, without what commands that were run in it keep of gRPC's log."""
    return {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}


@contextmanager
def serve_runner(
    directory: Path, checkpoint: Path, *, engine_command: Sequence[str] | None = None
) -> Iterator[Runner]:
    """Yields a runner, and ends the servers that still run when the block does.

    Args:
        directory: Where the servers run.
        checkpoint: The directory of their model.
        engine_command: Runs their engines, such as `forked("antiphon_engine")`, and has the
            servers forked as well, which spares seconds of imports for each start; None: the
            command that people run.
    """
    made = Runner(directory, checkpoint, engine_command)
    try:
        yield made
    finally:
        for command in made.commands:
            if command.process.poll() is None:
                command.process.kill()
                command.process.communicate()


def address_in(line: str) -> str:
    """Returns the address in a ready line."""
    return line.rsplit(" ", 1)[1]


def engines_of(process_id: int) -> list[int]:
    """Returns the ids of a server's engine processes: its children that check no constraints.

    Where a child stands for a fork, that is the engine.
    """
    children = [child for child in children_of(process_id) if not _checks_constraints(child)]
    return [fork_of(child) or child for child in children]


def checkers_of(process_id: int) -> list[int]:
    """Returns the ids of a server's processes that check constraints."""
    return [child for child in children_of(process_id) if _checks_constraints(child)]


def fork_of(launcher_id: int) -> int | None:
    """Returns the id of the process that a launcher stands for; None: it is no launcher."""
    try:
        title = Path(f"/proc/{launcher_id}/comm").read_text()
    except OSError:
        return None
    return int(title.split()[1]) if title.startswith("fork ") else None


def _checks_constraints(process_id: int) -> bool:
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return b"checker_process" in command or b"antiphon_checker" in command


def children_of(process_id: int) -> list[int]:
    """Returns the ids of a process's children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == process_id:
                found.append(int(entry.name))
    return found
