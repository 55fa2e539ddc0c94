"""Entry point of the engine process, which the front end starts."""

import sys

from antiphon_engine.api.linked_process import link_of_this_process, read_start
from antiphon_engine.api.process import EngineStart
from antiphon_engine.watchdog import end_with_front_end


def main() -> int:
    """Runs the engine and returns the process's exit status."""
    link = link_of_this_process(sys.argv[1:])
    # Before torch is imported, which takes seconds.
    end_with_front_end(link)
    from antiphon_engine.engine_process import run_engine
    from antiphon_engine.loading import load
    from antiphon_engine.logs import configure_logging

    start = read_start(sys.stdin.buffer, EngineStart)
    configure_logging(sys.stderr, level=start.logging.level, as_json=start.logging.as_json)
    return run_engine(start, link, load)


if __name__ == "__main__":
    sys.exit(main())
