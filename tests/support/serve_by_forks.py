"""The command `antiphon`, whose engines another command runs: `serve_by_forks.py ENGINE serve …`.

ENGINE is that command as JSON, such as `support.engine_zygote.forked` returns.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_cli import serve
from antiphon_cli.main import main


@dataclass(frozen=True, slots=True)
class ServeByForks:
    """The subcommand `serve` with engines of its own."""

    engine_command: Sequence[str]
    DESCRIPTION: str = serve.DESCRIPTION
    EXAMPLES: str = serve.EXAMPLES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        serve.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        return serve.run(arguments, engine_command=self.engine_command)


if __name__ == "__main__":
    engine, *words = sys.argv[1:]
    sys.exit(main(words, load=lambda _name: ServeByForks(json.loads(engine))))
