"""The main functions that the zygote of tests runs in forks, by name. Each reads `sys.argv`."""

import sys
from collections.abc import Callable, Mapping
from typing import Final

import uvloop  # noqa: F401 - the loop that servers run on: else each would import it

import antiphon_server.serve  # noqa: F401 - what the command imports as it serves
from antiphon_engine.__main__ import main as engine_main
from antiphon_engine.grammar import llguidance_backend, xgrammar_backend  # noqa: F401
from antiphon_server.constraints import checker_program  # noqa: F401
from antiphon_server.constraints.checker_process import main as checker_main
from antiphon_server.settings import setting_keys
from support.fake_checker import forked_main as fake_checker_main
from support.fake_engine_process import main as fake_engine_main
from support.scripted_engine import main as scripted_main
from support.serve_by_forks import main as serve_main
from support.terminal import main as terminal_main
from torture.trusting_checker_process import main as trusting_checker_main
from torture.zygote import serve_commands

setting_keys()  # Else each server would work out the settings' types.


def _grammar_bench() -> int:
    """Runs the benchmark of grammars."""
    from bench.grammar import main

    return main()


def _test_worker() -> int:
    """Does what execnet asks of a Python that it has started, on standard input and output."""
    exec(eval(sys.stdin.readline()), sys.modules["__main__"].__dict__)
    return 0


MAINS: Final[Mapping[str, Callable[[], int]]] = {
    "antiphon_checker": checker_main,
    "antiphon_engine": engine_main,
    "antiphon_serve": serve_main,
    "bench.grammar": _grammar_bench,
    "support.fake_checker": fake_checker_main,
    "support.fake_engine_process": fake_engine_main,
    "support.scripted_engine": scripted_main,
    "support.terminal": terminal_main,
    "test_worker": _test_worker,
    "torture.trusting_checker_process": trusting_checker_main,
    "torture.zygote": serve_commands,
}
