"""A process that shares a terminal with the one that started it."""

import signal
import subprocess
import sys

import pytest

from antiphon_engine.api.parent_process import run_at_terminal

SHARE = "from antiphon_engine.api.parent_process import share_the_terminal; share_the_terminal()"


def test_what_it_is_told_and_how_it_ends() -> None:
    code = "import sys; sys.exit(len(sys.stdin.read()))"

    assert run_at_terminal([sys.executable, "-c", code], b"x" * 7) == 7


@pytest.mark.parametrize(
    "code",
    [
        f"import os; os.kill(os.getpid(), 2); print('on'); {SHARE}; print('behind')",
        f"import os; {SHARE}; print('on'); os.kill(os.getpid(), 2); print('behind')",
    ],
    ids=["as it begins", "as it works"],
)
def test_ctrl_c_ends_it_without_a_word(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_at_terminal([sys.executable, "-u", "-c", code]) == -signal.SIGINT
    assert capfd.readouterr() == ("on\n", "")


def test_ctrl_c_in_the_one_that_waits_ends_both() -> None:
    inner = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    # What a shell starts in the background ignores Ctrl-C, and so would all that comes of it.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from antiphon_engine.api.parent_process import run_at_terminal\n"
        f"try: run_at_terminal([sys.executable, '-c', {inner!r}])\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()

        waiting.send_signal(signal.SIGINT)

        # Ends once neither has it open.
        assert waiting.stdout.read() == b""
    assert waiting.returncode == 130
