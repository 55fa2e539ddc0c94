"""The `antiphon` command. Imports nothing at first, so that Ctrl-C never brings a traceback."""

import sys

_INTERRUPTED = 130


def main() -> int:
    """Runs the command that this process's words name and returns its exit status."""
    try:
        from antiphon_cli.main import main as run

        return run()
    except KeyboardInterrupt:  # While that was imported, or on the way out.
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
