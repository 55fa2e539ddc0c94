"""What the process's control groups allow: its own, and those around it.

Where a container has a hierarchy of its own, its group is the root that it sees. A service of the
machine's has a place below the root, and a limit may stand at any folder on the way.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNT = "sys/fs/cgroup"


def own_groups(root: Path = Path("/")) -> Iterator[Path]:
    """Yields the folders of this process's groups, the outermost first.

    Args:
        root: Where `proc` and `sys` lie.
    """
    mount = root / _MOUNT
    yield mount
    folder = mount
    for part in _place(root).parts[1:]:
        folder /= part
        yield folder


def read_integer(path: Path) -> int | None:
    """Returns a file's number; None where it has none, such as `max`, or can't be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _place(root: Path) -> PurePosixPath:
    """Returns where the process is in the hierarchy."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        _, _, place = rest.partition(":")
        # Outside of what is mounted here, as some containers see it, nothing can be read.
        if hierarchy == "0" and place.startswith("/") and ".." not in place:
            return PurePosixPath(place)
    return PurePosixPath("/")
