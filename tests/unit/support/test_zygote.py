"""What forks the processes of tests: how a fork's end is told, and that none outlives its asker."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.forked_process import ForkedProcess
from support.zygote import Stage, launcher_of, start_zygote

LIMIT_S = 60.0


class Zygote:
    """One of the test's own, which has imported next to nothing."""

    def __init__(self, directory: Path, stages: Sequence[Stage]) -> None:
        self.name, self.process = start_zygote(stages)
        self._directory = directory

    def fork(self, *command: str) -> ForkedProcess:
        return ForkedProcess(command, environ={}, directory=self._directory, zygote=self.name)

    def launch(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*launcher_of(self.name), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(params=[0, 2], ids=["first stage", "third stage"])
def zygote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zygote]:
    """Forks from its last stage."""
    before = [Stage("support.worker_mains")] * request.param
    made = Zygote(tmp_path, [*before, Stage("support.brief_mains")])
    yield made
    made.process.communicate(timeout=LIMIT_S)


def fork_of(launcher: subprocess.Popen[str]) -> int:
    """Returns the id of the fork that a launcher stands for."""
    assert launcher.stdout is not None
    return int(launcher.stdout.readline())


def ends(process_id: int) -> bool:
    """Waits for the end of a process that is nobody's child here; False: it runs on."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":  # Whoever reaps it may take a while.
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (("end", "0"), 0, ""),
        (("end", "3"), 3, ""),
        (("exit", "no room"), 1, "no room\n"),
        (("fail", "no such thing"), 1, "ValueError: no such thing\n"),
        (("unknown",), 1, "KeyError: 'unknown'\n"),
    ],
)
def test_a_forks_status_and_words_are_told(
    zygote: Zygote, command: tuple[str, ...], status: int, said: str
) -> None:
    fork, launcher = zygote.fork(*command), zygote.launch(*command)

    _, words_of_fork = fork.communicate(timeout=LIMIT_S)
    _, words_of_launchers_fork = launcher.communicate(timeout=LIMIT_S)

    assert (fork.returncode, launcher.returncode) == (status, status)
    assert words_of_fork.endswith(said)
    assert words_of_launchers_fork.endswith(said)


def test_a_signal_that_ends_a_fork_is_told(zygote: Zygote) -> None:
    fork, launcher = zygote.fork("wait"), zygote.launch("wait")

    fork.send_signal(signal.SIGTERM)
    os.kill(fork_of(launcher), signal.SIGTERM)

    assert fork.wait(LIMIT_S) == -signal.SIGTERM
    assert launcher.wait(LIMIT_S) == -signal.SIGTERM
    launcher.communicate()


def test_a_fork_whose_launcher_is_killed_is_killed(zygote: Zygote) -> None:
    launcher = zygote.launch("wait")
    fork_id = fork_of(launcher)

    launcher.kill()
    launcher.communicate(timeout=LIMIT_S)

    assert ends(fork_id)
    assert zygote.fork("end", "0").wait(LIMIT_S) == 0


def test_forks_are_killed_when_the_zygote_is_told_to_end(zygote: Zygote) -> None:
    fork, launcher = zygote.fork("wait"), zygote.launch("wait")
    ids = [fork.pid, fork_of(launcher)]

    zygote.process.communicate(timeout=LIMIT_S)

    assert zygote.process.returncode == 0
    assert [ends(each) for each in ids] == [True, True]
    launcher.communicate(timeout=LIMIT_S)


def test_forks_end_and_askers_are_told_where_the_zygote_is_killed(zygote: Zygote) -> None:
    fork, launcher = zygote.fork("wait"), zygote.launch("wait")
    ids = [fork.pid, fork_of(launcher)]

    zygote.process.kill()

    assert [ends(each) for each in ids] == [True, True]
    assert fork.wait(LIMIT_S) == 1
    launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 1


def test_a_stage_that_can_not_be_made_takes_none_along(tmp_path: Path) -> None:
    broken = Stage("support.worker_mains", modules=("support.no_such_module",))
    zygote = Zygote(tmp_path, [Stage("support.brief_mains"), broken])
    launcher = zygote.launch("test_worker")

    assert launcher.wait(LIMIT_S) == 1
    assert zygote.fork("end", "3").wait(LIMIT_S) == 3

    launcher.communicate()

    zygote.process.communicate(timeout=LIMIT_S)
