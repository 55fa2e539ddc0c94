"""How the `antiphon` command begins."""

import subprocess
import sys

INTERRUPTED = """
import sys

class Interrupting:
    def find_spec(name, *_):
        if name == "antiphon_cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting)
from antiphon_cli.__main__ import main
sys.exit(main())
"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_word():
    ended = run("-c", INTERRUPTED)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_it_imports_nothing_of_the_command_where_ctrl_c_would_bring_a_traceback():
    found = "[name for name in sys.modules if 'antiphon_cli' in name]"
    code = f"import sys, antiphon_cli.__main__; print({found})"

    assert run("-c", code).stdout == "['antiphon_cli', 'antiphon_cli.__main__']\n"


def test_it_runs_as_a_module():
    told = run("-m", "antiphon_cli", "--version")

    assert (told.returncode, told.stdout.split()[0]) == (0, "antiphon")
