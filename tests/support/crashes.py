"""What a server leaves that is killed."""

import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path


def copy_left_behind(path: Path) -> Path:
    """Copies what is durable of a session store at this moment, and returns where.

    That is what the next server finds where the one that has the file is killed now.
    """
    copies = (path.with_name(f"{path.stem}-{number}.db") for number in count(1))
    copy = next(candidate for candidate in copies if not candidate.exists())
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy
