"""The main functions of forks that import PyTorch, by name. Each reads `sys.argv`."""

from collections.abc import Callable, Mapping
from typing import Final

from antiphon_engine.__main__ import main as engine_main
from antiphon_engine.checkpoint import gguf  # noqa: F401 - what the converter imports in its turn
from antiphon_engine.checkpoint.__main__ import main as converter_main
from antiphon_engine.grammar import llguidance_backend, xgrammar_backend  # noqa: F401
from antiphon_server.constraints import checker_program  # noqa: F401
from antiphon_server.constraints.checker_process import main as checker_main
from support.scripted_engine import main as scripted_main


def _grammar_bench() -> int:
    """Runs the benchmark of grammars."""
    from bench.grammar import main

    return main()


MAINS: Final[Mapping[str, Callable[[], int]]] = {
    "antiphon_checker": checker_main,
    "antiphon_converter": converter_main,
    "antiphon_engine": engine_main,
    "bench.grammar": _grammar_bench,
    "support.scripted_engine": scripted_main,
}
