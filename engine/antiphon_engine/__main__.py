"""Entry point of the engine process, which the front end starts."""

import os
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
    logging = start.surroundings.logging
    configure_logging(sys.stderr, level=logging.level, as_json=logging.as_json)
    return run_engine(start, link, load)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads may be at work in native code, loading libraries for instance, which must not see the
    # interpreter taken down around them.
    os._exit(status)
