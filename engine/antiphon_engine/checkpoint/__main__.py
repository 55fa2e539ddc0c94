"""Converts a GGUF file: `python -m antiphon_engine.checkpoint FILE.gguf DIRECTORY [--tie]`.

Tells its progress, or why it failed, as JSON objects, one a line.
"""

import argparse
import json
import sys
from pathlib import Path

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.parent_process import end_with_parent


def main() -> int:
    """Runs the conversion and returns the exit status."""
    # A later start clears up after it and begins anew in the same place.
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m antiphon_engine.checkpoint")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--tie", action="store_true")
    arguments = parser.parse_args()

    _report("start the converter", 0, 0)
    from antiphon_engine.checkpoint.gguf import convert

    try:
        convert(arguments.source, arguments.target, tie=arguments.tie, progress=_report)
    except StartupError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    _report("converted", 1, 1)
    return 0


def _report(stage: str, done: int, total: int) -> None:
    print(json.dumps({"stage": stage, "done": done, "total": total}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
