"""What the process's control groups allow: its own, and those around it.

Where a container has a hierarchy of its own, its group is the root that it sees. A service of the
machine's has a place below the root, and a limit may stand at any folder on the way. Version 2 has
one hierarchy for all that is limited; version 1, which older machines have, one for each.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

_MOUNT = "sys/fs/cgroup"


def least_available_bytes(root: Path = Path("/")) -> int | None:
    """Returns the memory that all groups leave; None where none limits it.

    Args:
        root: Where `proc` and `sys` lie.
    """
    return _least(
        [
            *(
                _left_bytes(group, "memory.max", "memory.current", "inactive_file")
                for group in _own_groups(root)
            ),
            *(
                _left_bytes(
                    group,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                )
                for group in _own_groups(root, "memory")
            ),
        ]
    )


def least_quota_cores(root: Path = Path("/")) -> int | None:
    """Returns as how many cores, rounded up, the least share of processor time counts.

    Args:
        root: Where `proc` and `sys` lie.

    Returns:
        At least 1; None where no group limits it.
    """
    return _least(
        [
            *(_cores(_words(group / "cpu.max")) for group in _own_groups(root)),
            *(
                _cores(_words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us"))
                for group in _own_groups(root, "cpu")
            ),
        ]
    )


def find_number(path: Path, key: str) -> int | None:
    """Returns the number behind a word at the start of a line; None where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == key:
            return int(words[1])
    return None


def _own_groups(root: Path, controller: str = "") -> Iterator[Path]:
    """Yields the folders of this process's groups, the outermost first.

    Args:
        root: Where `proc` and `sys` lie.
        controller: Of version 1, whose hierarchy is meant; empty: version 2's.
    """
    folder = root / _MOUNT / controller
    yield folder
    for part in _place(root, controller).parts[1:]:
        folder /= part
        yield folder


def _place(root: Path, controller: str) -> PurePosixPath:
    """Returns where the process is in a hierarchy."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        # Version 2's has no controllers in its line.
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        # Outside of what is mounted here, as some containers see it, nothing can be read.
        if controller in controllers.split(",") and place.startswith("/") and ".." not in place:
            return PurePosixPath(place)
    return PurePosixPath("/")


def _left_bytes(group: Path, limit: str, used: str, reclaimable: str) -> int | None:
    limit_bytes, used_bytes = (_number(_words(group / name)) for name in (limit, used))
    if limit_bytes is None or used_bytes is None:
        return None
    reclaimable_bytes = find_number(group / "memory.stat", reclaimable) or 0
    return max(0, limit_bytes - used_bytes + reclaimable_bytes)


def _cores(words: list[str]) -> int | None:
    """Returns a quota of time in a period of time as cores; None where there is no quota."""
    quota, period = _number(words[:1]), _number(words[1:])
    return -(-quota // period) if quota and period else None


def _number(words: list[str]) -> int | None:
    """Returns the one number; None where there is none, such as `max`, -1 or nothing."""
    return int(words[0]) if len(words) == 1 and words[0].isdigit() else None


def _words(path: Path) -> list[str]:
    """Returns the words of a file; none where it can't be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def _least(found: Iterable[int | None]) -> int | None:
    return min((number for number in found if number is not None), default=None)
