"""`antiphon serve` whose engines are forks of the tests' zygote; the command is the real one.

Also to be run as `python -m support.serve_by_forks ENGINE_COMMAND …` with `tests` on PYTHONPATH.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_cli import serve
from antiphon_cli.main import main as antiphon_main


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


def main() -> int:
    """Runs `antiphon serve`; the first argument is the engine's command as JSON."""
    engine_command = json.loads(sys.argv[1])
    return antiphon_main(["serve", *sys.argv[2:]], load=lambda _name: _ServeByForks(engine_command))


if __name__ == "__main__":
    sys.exit(main())
