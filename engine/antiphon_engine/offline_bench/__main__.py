"""Entry point of the process that measures an engine; reads what to measure from standard input."""

import json
import sys

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.linked_process import read_start
from antiphon_engine.api.offline_bench import OfflineBench
from antiphon_engine.api.parent_process import end_with_parent, share_the_terminal


def main() -> int:
    """Measures, and returns the exit status."""
    end_with_parent()
    share_the_terminal()
    bench = read_start(sys.stdin.buffer, OfflineBench)
    from antiphon_engine.logs import configure_logging
    from antiphon_engine.offline_bench.measuring import measure

    configure_logging(sys.stderr, level="warning", as_json=False)
    try:
        figures = measure(bench)
    except StartupError as error:
        print(f"antiphon: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures), flush=True)
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
