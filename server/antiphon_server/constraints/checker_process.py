"""Entry point of the checker process, which the front end starts."""

import sys

from antiphon_engine.api.linked_process import link_of_this_process


def main() -> int:
    """Runs the checker and returns the process's exit status."""
    link = link_of_this_process(sys.argv[1:])
    # Takes seconds, in which the front end may end.
    from antiphon_server.constraints.checker_program import run_checker

    return run_checker(link)


if __name__ == "__main__":
    sys.exit(main())
