"""The main functions that the zygote of tests runs in forks, by name. Each reads `sys.argv`."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import antiphon_server.serve  # noqa: F401 - what the command imports as it serves
from antiphon_cli import serve
from antiphon_cli.main import main as antiphon_main
from antiphon_engine.__main__ import main as engine_main
from antiphon_engine.grammar import llguidance_backend, xgrammar_backend  # noqa: F401
from antiphon_server.constraints.checker_process import main as checker_main
from support.fake_engine_process import main as fake_engine_main
from support.scripted_engine import main as scripted_main
from torture.trusting_checker_process import main as trusting_checker_main
from torture.zygote import serve_commands


@dataclass(frozen=True, slots=True)
class _ServeByForks:
    """The subcommand `serve` with engines of its own."""

    engine_command: Sequence[str]
    DESCRIPTION: str = serve.DESCRIPTION
    EXAMPLES: str = serve.EXAMPLES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        serve.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        return serve.run(arguments, engine_command=self.engine_command)


def _serve() -> int:
    """Runs `antiphon serve`; the first argument is the engine's command as JSON."""
    engine_command = json.loads(sys.argv[1])
    return antiphon_main(["serve", *sys.argv[2:]], load=lambda _name: _ServeByForks(engine_command))


def _test_worker() -> int:
    """Does what execnet asks of a Python that it has started, on standard input and output."""
    exec(eval(sys.stdin.readline()), sys.modules["__main__"].__dict__)
    return 0


MAINS: Final[Mapping[str, Callable[[], int]]] = {
    "antiphon_checker": checker_main,
    "antiphon_engine": engine_main,
    "antiphon_serve": _serve,
    "support.fake_engine_process": fake_engine_main,
    "support.scripted_engine": scripted_main,
    "test_worker": _test_worker,
    "torture.trusting_checker_process": trusting_checker_main,
    "torture.zygote": serve_commands,
}
