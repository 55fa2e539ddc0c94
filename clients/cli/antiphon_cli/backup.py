"""`antiphon backup`: copies the session store."""

import argparse
import os
import sys
from pathlib import Path

from antiphon_cli.outcome import FAILED, complain

DESCRIPTION = """\
Copies the session store as it stands at one moment, also while its server runs, and checks the
copy. An existing file is never replaced. To go back to a copy, stop the server and start it with
--store COPY, or put the copy in the place of the store and of its -wal and -shm files."""
EXAMPLES = """\
examples:
  antiphon backup /var/backups/sessions-monday.db
  antiphon backup --store /var/lib/antiphon/sessions.db /var/backups/sessions-monday.db
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("destination", type=Path, metavar="COPY", help="the file to make")
    parser.add_argument(
        "--store",
        metavar="PATH",
        help="the SQLite file of the sessions (default: in your state folder)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")


def run(arguments: argparse.Namespace) -> int:
    """Copies, and returns the exit status."""
    from antiphon_engine.api.errors import StartupError
    from antiphon_server import settings
    from antiphon_server.progress import Progress
    from antiphon_server.sessions.store_copies import copy_store

    sets = [] if arguments.store is None else [f"store.path={arguments.store}"]
    progress = Progress(sys.stderr)
    try:
        config = settings.load_config(sets, arguments.config, os.environ)
        size_bytes = copy_store(
            Path(config.store.path),
            arguments.destination,
            on_progress=lambda done, total: progress("copying", min(done, total), total),
        )
    except StartupError as error:
        complain(str(error))
        return FAILED
    progress.end()
    print(f"{arguments.destination}: {size_bytes} bytes")
    return 0
