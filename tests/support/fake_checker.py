"""A checker process that loads nothing and does what the texts of constraints tell it to."""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.api.linked_process import link_of_this_process
from antiphon_server.constraints.check_messages import (
    Check,
    CheckerStart,
    Finding,
    Job,
    Planned,
    Refused,
    TooComplex,
    Verified,
)
from antiphon_server.constraints.checker_program import run
from support.zygote import launcher_command


def fake_checker_command(notes: Path) -> list[str]:
    """Returns the command that runs it; each job adds a line to `notes`, with the worker's id."""
    tests = str(Path(__file__).parents[1])
    program = (
        f"import sys; sys.path.insert(0, {tests!r})\n"
        "from support.fake_checker import main; main(sys.argv[1], sys.argv[2:])"
    )
    return [sys.executable, "-c", program, str(notes)]


def fork_fake_checker(notes: Path) -> list[str]:
    """As `fake_checker_command`, by a fork; its process id is not the checker's."""
    return [*launcher_command(), "support.fake_checker", str(notes)]


def noted_jobs(notes: Path) -> list[tuple[int, str]]:
    """Returns the jobs that were begun: each worker's id and the constraint's text."""
    if not notes.exists():
        return []
    lines = notes.read_text(encoding="utf-8").splitlines()
    return [(int(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in lines]


def noted_loads(notes: Path) -> list[tuple[str, int]]:
    """Returns which backends were loaded, in turn, and how nice the process was meanwhile."""
    lines = _loads(notes).read_text(encoding="utf-8").splitlines()
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def forked_main() -> int:
    """Runs it by the arguments of a fork."""
    main(sys.argv[1], sys.argv[2:])
    return 0


def main(notes: str, arguments: list[str]) -> None:
    def load(start: CheckerStart) -> FakeWork:
        with _loads(Path(notes)).open("a", encoding="utf-8") as file:
            file.write(f"{start.backend} {os.getpriority(os.PRIO_PROCESS, 0)}\n")
        return FakeWork(Path(notes))

    run(link_of_this_process(arguments), load)


def _loads(notes: Path) -> Path:
    return notes.with_name(f"{notes.name}-loads")


def grammar_of(said: str) -> str:
    """Returns the text of the grammar that comes of a constraint: one that says "of" and it."""
    return f"start: {json.dumps(f'of {said}')}"


class FakeWork:
    """The first word of a constraint's text, or of an output, says what becomes of it."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def __call__(self, job: Job) -> Finding:
        said = job.request.text if isinstance(job, Check) else job.text
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {said}\n")
        word, _, rest = said.partition(" ")
        _act(word, rest)
        if word == "refuse":
            return Refused(job_id=job.job_id, path=rest, message="can't be enforced")
        if word == "large":
            return TooComplex(job_id=job.job_id, message="has too many cases", metadata={"n": "9"})
        if not isinstance(job, Check):
            return Verified(job_id=job.job_id, violation=rest if word == "bad" else "")
        grammar = Grammar(backend=GrammarBackend.LLGUIDANCE, text=grammar_of(said))
        return Planned(job_id=job.job_id, grammar=grammar, compile_ns=1_000_000)


def _act(word: str, rest: str) -> None:
    match word:
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(float(rest))
        case "until":  # A file is there.
            while not Path(rest).exists():
                time.sleep(0.005)
        case "grow":
            held = []
            while True:
                held.append(bytes(1 << 24))  # Not written to, so memory ends before time.
        case "crash":
            ctypes.string_at(0)
        case "once":  # Ends its worker from outside, as far as that can tell, the first time.
            mark = Path(rest)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        case "fault":
            raise ZeroDivisionError("a fault")
